package main

import (
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var restartScenarios = []scenario{
	{name: "restart.durability", run: restartDurability, alone: true},
	{name: "restart.kill", run: restartKill, alone: true},
	{name: "restart.recovery", run: restartRecovery, alone: true},
}

// redial waits until the broker listens again.
func (t *T) redial() *amqp.Connection {
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		conn, err := amqp.Dial(t.uri)
		if err == nil {
			t.conns = append(t.conns, conn)
			return conn
		}
		if time.Now().After(deadline) {
			panic("broker is not back: " + err.Error())
		}
	}
}

func persistent(body string) amqp.Publishing {
	return amqp.Publishing{DeliveryMode: amqp.Persistent, Headers: amqp.Table{"h": int32(1)}, Body: []byte(body)}
}

func restartDurability(t *T) {
	exchange, queue, transient := t.n("x"), t.n("q"), t.n("transient")
	t.cleanUp([]string{queue}, []string{exchange})
	ch := t.confirmCh()
	check(ch.ExchangeDeclare(exchange, "topic", true, false, false, false, nil))
	check(ch.ExchangeDeclare(t.n("transient-x"), "topic", false, false, false, false, nil))
	must(ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "classic"}))
	must(ch.QueueDeclare(transient, false, false, false, false, nil))
	check(ch.QueueBind(queue, "k.#", exchange, false, nil))
	check(ch.QueueBind(transient, "k.#", exchange, false, nil))
	sure(ch, exchange, "k.1", persistent("persistent"))
	sure(ch, exchange, "k.1", text("not persistent"))
	sure(ch, exchange, "k.1", persistent("unacked"))
	got, _ := must2(ch.Get(queue, false))
	check(got.Reject(true))
	closed := t.conn().NotifyClose(make(chan *amqp.Error, 1))
	hook("restart")
	reason := nextOf("close", closed)
	t.saw("told why", describe(reason, nil), fault(320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", "connection"))
	conn := t.redial()
	ch = must(conn.Channel())
	check(ch.ExchangeDeclarePassive(exchange, "topic", true, false, false, false, nil))
	must(ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-queue-type": "classic"}))
	first, _ := must2(ch.Get(queue, true))
	t.saw("the persistent ones are there", []any{string(first.Body), tell(first.Headers["h"]), first.RoutingKey}, []any{"persistent", "int32 1", "k.1"})
	t.saw("and the others are not", drain(ch, queue), []string{"unacked"})
	check(ch.Confirm(false))
	sure(ch, exchange, "k.2", persistent("bound still"))
	t.saw("the binding is there", drain(ch, queue), []string{"bound still"})
	t.failsOn(conn, "the transient queue is not", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(transient, false, false, false, false, nil)
		return err
	}, notFound(transient))
	t.failsOn(conn, "the transient exchange is not", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(t.n("transient-x"), "topic", false, false, false, false, nil)
	}, fault(404, "NOT_FOUND - no exchange '"+t.n("transient-x")+"' in vhost '/'", "channel"))
	t.main = conn
	t.cleanUp([]string{queue}, []string{exchange})
}

// Confirmed means synced: after SIGKILL every confirmed message is there. RabbitMQ 3.10
// acks after its own sync interval, so this holds there too.
func restartKill(t *T) {
	const count = 1000
	t.cleanUp([]string{t.n("q")}, nil)
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare(t.n("q"), true, false, false, false, nil)).Name
	// RabbitMQ writes a declaration some seconds later; after an orderly stop it is on disk. This case is about messages.
	hook("restart")
	t.main = t.redial()
	ch = t.confirmCh()
	var last *amqp.DeferredConfirmation
	for left := count; left > 0; left-- {
		last = must(ch.PublishWithDeferredConfirm("", queue, false, false, persistent("x")))
	}
	nextOf("confirm", last.Done())
	eventually("all confirmed", func() bool { return last.Acked() })
	must(ch.QueueDeclarePassive(queue, true, false, false, false, nil))
	hook("kill")
	conn := t.redial()
	t.saw("all confirmed messages are there", must(must(conn.Channel()).QueueDelete(queue, false, false, false)), count)
}

// The library's own recovery: connection, topology and consumers come back by themselves.
func restartRecovery(t *T) {
	conn := t.dial(amqp.Config{Recovery: &amqp.Recovery{ReconnectionConfig: &amqp.ReconnectionConfig{MaxRetryCount: 100, RetryInterval: 200 * time.Millisecond}}})
	states := make(chan *amqp.StateChanged, 50)
	conn.NotifyStateChange(states)
	ch := must(conn.Channel())
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "fanout", false, true, false, false, nil))
	queue := must(ch.QueueDeclare(t.n("q"), false, true, false, false, nil)).Name
	check(ch.QueueBind(queue, "", exchange, false, nil))
	deliveries := must(ch.Consume(queue, "mine", true, false, false, false, nil))
	publish(ch, exchange, "", "before")
	t.saw("before", take(deliveries, 1), []string{"before"})
	hook("kill")
	open := false
	for deadline := time.After(30 * time.Second); !open; {
		select {
		case change := <-states:
			open = change.To == amqp.StateOpen
		case <-deadline:
			panic("never recovered")
		}
	}
	eventually("a publish goes through", func() bool {
		if ch.Publish(exchange, "", false, false, text("after")) != nil {
			return false
		}
		select {
		case delivery, ok := <-deliveries:
			return ok && string(delivery.Body) == "after"
		case <-time.After(500 * time.Millisecond):
			return false
		}
	})
	t.saw("topology and consumer are back", true, true)
	check(conn.Close())
}
