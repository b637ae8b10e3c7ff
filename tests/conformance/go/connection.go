package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var connectionScenarios = []scenario{
	{name: "connection.properties", run: connectionProperties},
	{name: "connection.tune", run: connectionTune},
	{name: "connection.frame-max", run: connectionFrameMax},
	{name: "connection.login", run: connectionLogin},
	{name: "connection.vhost", run: connectionVhost},
	{name: "connection.close", run: connectionClose},
	{name: "connection.channels", run: connectionChannels},
	{name: "connection.many", run: connectionMany},
	{name: "connection.churn", run: connectionChurn},
	{name: "connection.update-secret", run: connectionUpdateSecret},
	{name: "connection.blocked-listener", run: connectionBlockedListener},
	{name: "connection.heartbeat", run: connectionHeartbeat, slow: true},
	{name: "connection.heartbeat-lost", run: connectionHeartbeatLost, slow: true},
	{name: "connection.abandoned", run: connectionAbandoned},
	{name: "channel.flow", run: channelFlow},
	{name: "channel.survivors", run: channelSurvivors},
	{name: "channel.reuse", run: channelReuse},
	{name: "permission.limited", run: permissionLimited},
	{name: "permission.none", run: permissionNone},
}

func (t *T) as(user, password, vhost string) string {
	parsed := must(url.Parse(t.uri))
	parsed.User = url.UserPassword(user, password)
	if vhost != "" {
		parsed.Path, parsed.RawPath = "/"+vhost, ""
	}
	return parsed.String()
}

func connectionProperties(t *T) {
	conn := t.conn()
	missing := []string{}
	for _, name := range []string{"capabilities", "cluster_name", "copyright", "information", "platform", "product", "version"} {
		if _, there := conn.Properties[name]; !there {
			missing = append(missing, name)
		}
	}
	t.saw("missing server properties", missing, []string{})
	t.saw("capabilities", conn.Properties["capabilities"], map[string]any{
		"publisher_confirms": true, "exchange_exchange_bindings": true, "basic.nack": true, "consumer_cancel_notify": true,
		"connection.blocked": true, "consumer_priorities": true, "authentication_failure_close": true,
		"per_consumer_qos": true, "direct_reply_to": true,
	})
	t.saw("protocol", []int{conn.Major, conn.Minor}, []int{0, 9})
	t.saw("locales", conn.Locales, []string{"en_US"})
	version := fmt.Sprint(conn.Properties["version"])
	t.saw("version is a RabbitMQ 3 level", strings.HasPrefix(version, "3."), true)
}

func connectionTune(t *T) {
	conn := t.conn()
	t.saw("limits", []any{conn.Config.ChannelMax, conn.Config.FrameSize}, []any{2047, 131072})
	small := t.dial(amqp.Config{ChannelMax: 3, FrameSize: 4096, Heartbeat: 7 * time.Second})
	t.saw("smaller limits", []any{small.Config.ChannelMax, small.Config.FrameSize, small.Config.Heartbeat.Seconds()}, []any{3, 4096, 7})
	for left := 3; left > 0; left-- {
		must(small.Channel())
	}
	_, err := small.Channel()
	t.saw("the library refuses a fourth channel", errors.Is(err, amqp.ErrChannelMax), true)
}

// A frame_max of 4096 splits headers and bodies on both ways.
func connectionFrameMax(t *T) {
	conn := t.dial(amqp.Config{FrameSize: 4096})
	ch := must(conn.Channel())
	check(ch.Confirm(false))
	queue := must(ch.QueueDeclare(t.n("q"), false, true, true, false, nil)).Name
	for _, size := range []int{0, 1, 4087, 4088, 4089, 8176, 100_000} {
		body := pattern(size)
		sure(ch, "", queue, amqp.Publishing{Body: body})
		got, _ := must2(ch.Get(queue, true))
		t.saw(fmt.Sprintf("%d bytes through frames of 4096", size), string(got.Body) == string(body), true)
	}
}

func pattern(size int) []byte {
	body := make([]byte, size)
	for index := range body {
		body[index] = byte(index*7 + index>>8)
	}
	return body
}

func connectionLogin(t *T) {
	// The library puts its own text in the place of the broker's.
	refused := fault(403, amqp.ErrCredentials.Reason, "connection")
	_, err := amqp.Dial(t.as("guest", "wrong", ""))
	t.saw("wrong password", describe(err, nil), refused)
	_, err = amqp.Dial(t.as("nobody-here", "guest", ""))
	t.saw("unknown user", describe(err, nil), refused)
	conn := t.dial(amqp.Config{SASL: []amqp.Authentication{&amqp.AMQPlainAuth{Username: "guest", Password: "guest"}}})
	t.saw("AMQPLAIN", must(conn.Channel()).IsClosed(), false)
	_, err = amqp.DialConfig(t.uri, amqp.Config{SASL: []amqp.Authentication{&amqp.AMQPlainAuth{Username: "guest", Password: "wrong"}}})
	t.saw("AMQPLAIN with a wrong password", describe(err, nil), refused)
	_, err = amqp.DialConfig(t.uri, amqp.Config{SASL: []amqp.Authentication{&amqp.ExternalAuth{}}})
	t.saw("a mechanism that is not offered", errors.Is(err, amqp.ErrSASL), true)
}

func connectionVhost(t *T) {
	_, err := amqp.Dial(t.as("guest", "guest", "missing"))
	t.saw("missing vhost", describe(err, nil), fault(530, "NOT_ALLOWED - vhost missing not found", "connection"))
	_, err = amqp.Dial(t.as("limited", "limited-pass", "other"))
	t.saw("refused vhost", describe(err, nil), fault(530, "NOT_ALLOWED - access to vhost 'other' refused for user 'limited'", "connection"))
	conn := must(amqp.Dial(t.as("guest", "guest", "other")))
	defer conn.Close()
	ch := must(conn.Channel())
	_, err = ch.QueueDeclarePassive(t.n("q"), false, false, false, false, nil)
	t.saw("texts name the vhost", describe(err, conn), fault(404, "NOT_FOUND - no queue '"+t.n("q")+"' in vhost 'other'", "channel"))
}

func connectionClose(t *T) {
	conn := t.newConn()
	ch := must(conn.Channel())
	connClosed := conn.NotifyClose(make(chan *amqp.Error, 1))
	chClosed := ch.NotifyClose(make(chan *amqp.Error, 1))
	check(ch.Close())
	_, open := <-chClosed
	t.saw("channel closed by us: listener ends without error", open, false)
	check(conn.Close())
	_, open = <-connClosed
	t.saw("connection closed by us: listener ends without error", open, false)
	t.saw("second close", errors.Is(conn.Close(), amqp.ErrClosed), true)
}

// Many channels work at the same time on one connection.
func connectionChannels(t *T) {
	conn := t.newConn()
	const channels, each = 200, 10
	queue := t.n("q")
	must(must(conn.Channel()).QueueDeclare(queue, false, true, false, false, nil))
	var work sync.WaitGroup
	broken := make(chan error, channels)
	for left := channels; left > 0; left-- {
		work.Add(1)
		go func() {
			defer work.Done()
			ch, err := conn.Channel()
			if err == nil {
				err = ch.Confirm(false)
			}
			for index := 0; err == nil && index < each; index++ {
				var confirmation *amqp.DeferredConfirmation
				confirmation, err = ch.PublishWithDeferredConfirm("", queue, false, false, text("x"))
				if err == nil && !confirmation.Wait() {
					err = errors.New("nack")
				}
			}
			if err == nil {
				err = ch.Close()
			}
			if err != nil {
				broken <- err
			}
		}()
	}
	work.Wait()
	t.saw("errors of 200 channels", len(broken), 0)
	ch := must(conn.Channel())
	t.saw("messages of 200 channels", must(ch.QueueDeclarePassive(queue, false, true, false, false, nil)).Messages, channels*each)
	t.saw("deleted with", must(ch.QueueDelete(queue, false, false, false)), channels*each)
}

func connectionMany(t *T) {
	const connections = 60
	queue := t.n("q")
	ch := t.ch()
	must(ch.QueueDeclare(queue, false, false, false, false, nil))
	var work sync.WaitGroup
	broken := make(chan error, connections)
	for left := connections; left > 0; left-- {
		work.Add(1)
		go func() {
			defer work.Done()
			conn, err := amqp.Dial(t.uri)
			if err != nil {
				broken <- err
				return
			}
			defer conn.Close()
			ch, err := conn.Channel()
			if err == nil {
				err = ch.Confirm(false)
			}
			if err == nil {
				var confirmation *amqp.DeferredConfirmation
				confirmation, err = ch.PublishWithDeferredConfirm("", queue, false, false, text("x"))
				if err == nil {
					confirmation.Wait()
				}
			}
			if err != nil {
				broken <- err
			}
		}()
	}
	work.Wait()
	t.saw("errors of 60 connections", len(broken), 0)
	t.saw("messages of 60 connections", must(ch.QueueDelete(queue, false, false, false)), connections)
}

// Channel numbers are free again at once.
func connectionChurn(t *T) {
	conn := t.dial(amqp.Config{ChannelMax: 2})
	for left := 200; left > 0; left-- {
		ch := must(conn.Channel())
		check(ch.Publish("", t.n("nowhere"), false, false, text("x")))
		check(ch.Close())
	}
	t.saw("200 channels one after another over 2 numbers", conn.IsClosed(), false)
	for left := 50; left > 0; left-- {
		_, err := must(conn.Channel()).QueueDeclarePassive(t.n("absent"), false, false, false, false, nil)
		if err == nil {
			panic("absent queue found")
		}
	}
	t.saw("50 channel errors one after another", conn.IsClosed(), false)
}

func connectionUpdateSecret(t *T) {
	conn := t.newConn()
	t.saw("update-secret", fmt.Sprint(conn.UpdateSecret("guest", "rotation")), "<nil>")
	t.saw("still open", must(conn.Channel()).IsClosed(), false)
}

func connectionBlockedListener(t *T) {
	conn := t.newConn()
	blocked := conn.NotifyBlocked(make(chan amqp.Blocking, 8))
	ch := must(conn.Channel())
	check(ch.Confirm(false))
	for left := 100; left > 0; left-- {
		sure(ch, "", t.n("nowhere"), text("x"))
	}
	t.saw("no blocked notification without an alarm", len(blocked), 0)
}

func connectionHeartbeat(t *T) {
	conn := t.dial(amqp.Config{Heartbeat: time.Second})
	ch := must(conn.Channel())
	t.saw("negotiated", conn.Config.Heartbeat.Seconds(), 1)
	time.Sleep(4 * time.Second)
	t.saw("idle for four intervals, closed", conn.IsClosed(), false)
	t.saw("and of use", must(ch.QueueDeclare("", false, true, true, false, nil)).Messages, 0)
}

// mute is a socket whose writes can be swallowed: the broker then hears nothing.
type mute struct {
	net.Conn
	silent chan struct{}
}

func (m *mute) Write(bytes []byte) (int, error) {
	select {
	case <-m.silent:
		return len(bytes), nil
	default:
		return m.Conn.Write(bytes)
	}
}

func connectionHeartbeatLost(t *T) {
	silent := make(chan struct{})
	conn := t.dial(amqp.Config{Heartbeat: time.Second, Dial: func(network, address string) (net.Conn, error) {
		socket, err := amqp.DefaultDial(patience)(network, address)
		return &mute{Conn: socket, silent: silent}, err
	}})
	closed := conn.NotifyClose(make(chan *amqp.Error, 1))
	close(silent)
	started := time.Now()
	select {
	case <-closed:
		spent := time.Since(started)
		t.saw("a silent client is dropped after one to four intervals", spent > 900*time.Millisecond && spent < 4*time.Second, true)
	case <-time.After(8 * time.Second):
		t.saw("a silent client is dropped after one to four intervals", "never", true)
	}
}

// A socket that just goes away gives its unacked messages and exclusive queues back.
func connectionAbandoned(t *T) {
	var socket net.Conn
	conn := t.dial(amqp.Config{Dial: func(network, address string) (net.Conn, error) {
		var err error
		socket, err = amqp.DefaultDial(patience)(network, address)
		return socket, err
	}})
	shared := t.n("shared")
	setup := t.confirmCh()
	must(setup.QueueDeclare(shared, false, false, false, false, nil))
	sure(setup, "", shared, text("one"))
	ch := must(conn.Channel())
	must(ch.QueueDeclare(t.n("exclusive"), false, false, true, false, nil))
	got, _ := must2(ch.Get(shared, false))
	t.saw("first delivery", []any{string(got.Body), got.Redelivered}, []any{"one", false})
	check(socket.Close())
	eventually("the message comes back", func() bool {
		return must(setup.QueueDeclarePassive(shared, false, false, false, false, nil)).Messages == 1
	})
	got, _ = must2(setup.Get(shared, true))
	t.saw("second delivery", []any{string(got.Body), got.Redelivered}, []any{"one", true})
	eventually("the exclusive queue goes", func() bool {
		probe := t.ch()
		_, err := probe.QueueDeclarePassive(t.n("exclusive"), false, false, true, false, nil)
		return describe(err, t.conn()).(map[string]any)["code"] == amqp.NotFound
	})
	t.saw("the exclusive queue went", true, true)
	t.cleanUp([]string{shared}, nil)
}

func channelFlow(t *T) {
	ch := t.ch()
	t.saw("flow on", fmt.Sprint(ch.Flow(true)), "<nil>")
	t.fails("flow off", func(ch *amqp.Channel) error { return ch.Flow(false) },
		fault(540, "NOT_IMPLEMENTED - active=false", "connection"))
}

// One channel's error leaves the others alone.
func channelSurvivors(t *T) {
	conn := t.conn()
	other := t.ch()
	queue := must(other.QueueDeclare("", false, true, true, false, nil)).Name
	t.fails("missing exchange", func(ch *amqp.Channel) error { return ch.Publish(t.n("missing"), "k", false, false, text("x")) },
		fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel"))
	t.saw("connection closed", conn.IsClosed(), false)
	check(other.Confirm(false))
	t.saw("the other channel publishes", sure(other, "", queue, text("x")), true)
}

// What was published before the error counts, what comes after it does not.
func channelReuse(t *T) {
	queue := t.n("q")
	setup := t.ch()
	must(setup.QueueDeclare(queue, false, false, false, false, nil))
	t.fails("two good publishes, then a bad one", func(ch *amqp.Channel) error {
		publish(ch, "", queue, "one")
		publish(ch, "", queue, "two")
		publish(ch, t.n("missing"), "k", "bad")
		for left := 20; left > 0; left-- {
			_ = ch.Publish("", queue, false, false, text("late"))
		}
		return nil
	}, fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel"))
	eventually("both arrive", func() bool {
		return must(setup.QueueDeclarePassive(queue, false, false, false, false, nil)).Messages >= 2
	})
	t.saw("in the queue", drain(setup, queue), []string{"one", "two"})
	t.cleanUp([]string{queue}, nil)
}

func permissionLimited(t *T) {
	conn := must(amqp.Dial(t.as("limited", "limited-pass", "")))
	defer conn.Close()
	ch := must(conn.Channel())
	queue := "limited.conf.go"
	must(ch.QueueDeclare(queue, false, true, false, false, nil))
	check(ch.Confirm(false))
	refused := func(access, kind, name string) map[string]any {
		return fault(403, fmt.Sprintf("ACCESS_REFUSED - %s access to %s '%s' in vhost '/' refused for user 'limited'", access, kind, name), "channel")
	}
	t.failsOn(conn, "declare", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(t.n("q"), false, true, false, false, nil)
		return err
	}, refused("configure", "queue", t.n("q")))
	t.failsOn(conn, "delete", func(ch *amqp.Channel) error { _, err := ch.QueueDelete(t.n("q"), false, false, false); return err },
		refused("configure", "queue", t.n("q")))
	t.failsOn(conn, "publish to amq.direct", func(ch *amqp.Channel) error { return ch.Publish("amq.direct", "k", false, false, text("x")) },
		refused("write", "exchange", "amq.direct"))
	t.failsOn(conn, "publish to the default exchange", func(ch *amqp.Channel) error { return ch.Publish("", queue, false, false, text("x")) },
		refused("write", "exchange", "amq.default"))
	t.failsOn(conn, "bind from amq.direct", func(ch *amqp.Channel) error { return ch.QueueBind(queue, "k", "amq.direct", false, nil) },
		refused("read", "exchange", "amq.direct"))
	other := "limited.write.go"
	must(t.ch().QueueDeclare(other, false, true, false, false, nil))
	t.failsOn(conn, "consume what may only be written", func(ch *amqp.Channel) error {
		_, err := ch.Consume(other, "", true, false, false, false, nil)
		return err
	}, refused("read", "queue", other))
	t.failsOn(conn, "purge", func(ch *amqp.Channel) error { _, err := ch.QueuePurge(other, false); return err }, refused("read", "queue", other))
	t.saw("a passive declare needs nothing", must(ch.QueueDeclarePassive(other, false, true, false, false, nil)).Messages, 0)
	t.cleanUp([]string{queue, other}, nil)
}

func permissionNone(t *T) {
	conn := must(amqp.Dial(t.as("watcher", "watcher-pass", "")))
	defer conn.Close()
	t.failsOn(conn, "server-named queue", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("", false, true, true, false, nil)
		return err
	}, fault(403, "ACCESS_REFUSED - configure access to queue 'amq.gen-<gen>' in vhost '/' refused for user 'watcher'", "channel"))
	t.failsOn(conn, "exchange", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(t.n("x"), "fanout", false, true, false, false, nil)
	}, fault(403, "ACCESS_REFUSED - configure access to exchange '"+t.n("x")+"' in vhost '/' refused for user 'watcher'", "channel"))
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	t.failsOn(conn, "publish", func(ch *amqp.Channel) error {
		return ch.PublishWithContext(ctx, "amq.fanout", "", false, false, text("x"))
	}, fault(403, "ACCESS_REFUSED - write access to exchange 'amq.fanout' in vhost '/' refused for user 'watcher'", "channel"))
}
