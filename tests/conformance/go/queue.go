package main

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var queueScenarios = []scenario{
	{name: "queue.declare", run: queueDeclare},
	{name: "queue.mismatch", run: queueMismatch},
	{name: "queue.mismatch-arguments", run: queueMismatchArguments},
	{name: "queue.arguments", run: queueArguments},
	{name: "queue.good-arguments", run: queueGoodArguments},
	{name: "queue.server-named", run: queueServerNamed},
	{name: "queue.exclusive", run: queueExclusive},
	{name: "queue.auto-delete", run: queueAutoDelete},
	{name: "queue.delete", run: queueDelete},
	{name: "queue.purge", run: queuePurge},
	{name: "queue.message-ttl", run: queueMessageTtl},
	{name: "queue.expires", run: queueExpires, slow: true},
	{name: "queue.max-length", run: queueMaxLength},
	{name: "queue.dead-letters", run: queueDeadLetters},
	{name: "queue.dead-letter-reasons", run: queueDeadLetterReasons},
	{name: "queue.dead-letter-cycle", run: queueDeadLetterCycle},
	{name: "queue.priority", run: queuePriority},
	{name: "queue.single-active-consumer", run: queueSingleActiveConsumer},
	{name: "queue.quorum", run: queueQuorum},
}

func notFound(name string) map[string]any {
	return fault(404, "NOT_FOUND - no queue '"+name+"' in vhost '/'", "channel")
}

func locked(name string) map[string]any {
	return fault(405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '"+name+"' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.", "channel")
}

func queueDeclare(t *T) {
	ch := t.confirmCh()
	queue := t.n("q")
	made := must(ch.QueueDeclare(queue, true, false, false, false, nil))
	t.saw("new", []any{made.Name, made.Messages, made.Consumers}, []any{queue, 0, 0})
	for left := 3; left > 0; left-- {
		sure(ch, "", queue, text("x"))
	}
	must(ch.Consume(queue, "", false, false, false, false, nil))
	made = must(ch.QueueDeclare(queue, true, false, false, false, nil))
	t.saw("one consumer holds what was ready", []any{made.Messages, made.Consumers}, []any{0, 1})
	check(ch.Close())
	ch = t.confirmCh()
	eventually("the messages come back", func() bool {
		return must(ch.QueueDeclarePassive(queue, true, false, false, false, nil)).Messages == 3
	})
	made = must(ch.QueueDeclarePassive(queue, false, true, true, false, amqp.Table{"x-max-length": int32(1)}))
	t.saw("passive looks at the name only", []any{made.Messages, made.Consumers}, []any{3, 0})
	t.fails("passive, missing", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(t.n("missing"), false, false, false, false, nil)
		return err
	}, notFound(t.n("missing")))
	must(ch.QueueDeclare(t.n("no-wait"), false, false, false, true, nil))
	t.saw("declared without waiting", must(ch.QueueDeclarePassive(t.n("no-wait"), false, false, false, false, nil)).Name, t.n("no-wait"))
	t.saw("line ends are cut from names", must(ch.QueueDeclare(t.n("line")+"\r\n", false, false, false, false, nil)).Name, t.n("line"))
	t.fails("reserved name", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare("amq.go", false, false, false, false, nil)
		return err
	}, fault(403, "ACCESS_REFUSED - queue name 'amq.go' contains reserved prefix 'amq.*'", "channel"))
	long := t.n(strings.Repeat("n", 255-len(t.n(""))))
	t.saw("a name of 255 bytes", must(ch.QueueDeclare(long, false, true, true, false, nil)).Name == long, true)
	utf8 := t.n("żółć-鉄-🚂")
	t.saw("a name in UTF-8", must(ch.QueueDeclare(utf8, false, true, true, false, nil)).Name, utf8)
	sure(ch, "", utf8, text("x"))
	t.saw("and its message", drain(ch, utf8), []string{"x"})
	t.fails("empty name, none declared: consume", func(ch *amqp.Channel) error {
		_, err := ch.Consume("", "", true, false, false, false, nil)
		return err
	}, fault(404, "NOT_FOUND - no previously declared queue", "channel"))
	t.cleanUp([]string{queue, t.n("no-wait"), t.n("line")}, nil)
}

func redeclare(queue string, durable, autoDelete, exclusive bool, args amqp.Table) func(*amqp.Channel) error {
	return func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, durable, autoDelete, exclusive, false, args)
		return err
	}
}

func inequal(text string) map[string]any {
	return fault(406, "PRECONDITION_FAILED - inequivalent arg "+text, "channel")
}

func queueMismatch(t *T) {
	queue := t.n("q")
	must(t.ch().QueueDeclare(queue, true, false, false, false, nil))
	must(t.ch().QueueDeclare(queue, true, false, false, false, amqp.Table{"x-unknown": "ignored"}))
	t.saw("unknown arguments are equal", true, true)
	t.fails("durable", redeclare(queue, false, false, false, nil), inequal("'durable' for queue '"+queue+"' in vhost '/': received 'false' but current is 'true'"))
	t.fails("auto-delete", redeclare(queue, true, true, false, nil), inequal("'auto_delete' for queue '"+queue+"' in vhost '/': received 'true' but current is 'false'"))
	t.fails("exclusive", redeclare(queue, true, false, true, nil), locked(queue))
	t.fails("durable and auto-delete", redeclare(queue, false, true, false, nil), inequal("'durable' for queue '"+queue+"' in vhost '/': received 'false' but current is 'true'"))
	t.cleanUp([]string{queue}, nil)
}

func queueMismatchArguments(t *T) {
	queue := t.n("q")
	same := amqp.Table{"x-max-length": int32(10), "x-message-ttl": int32(60000)}
	must(t.ch().QueueDeclare(queue, true, false, false, false, same))
	must(t.ch().QueueDeclare(queue, true, false, false, false, amqp.Table{"x-max-length": int64(10), "x-message-ttl": int64(60000), "x-unknown": "ignored"}))
	t.saw("other integer widths and unknown arguments are equal", true, true)
	t.fails("other value", redeclare(queue, true, false, false, amqp.Table{"x-max-length": int32(11), "x-message-ttl": int32(60000)}),
		inequal("'x-max-length' for queue '"+queue+"' in vhost '/': received '11' but current is '10'"))
	t.fails("one absent", redeclare(queue, true, false, false, amqp.Table{"x-max-length": int32(10)}),
		inequal("'x-message-ttl' for queue '"+queue+"' in vhost '/': received none but current is the value '60000' of type 'signedint'"))
	t.fails("one more", redeclare(queue, true, false, false, amqp.Table{"x-max-length": int32(10), "x-message-ttl": int32(60000), "x-expires": int64(100000)}),
		inequal("'x-expires' for queue '"+queue+"' in vhost '/': received the value '100000' of type 'long' but current is none"))
	t.cleanUp([]string{queue}, nil)
}

func queueArguments(t *T) {
	bad := []struct {
		name   string
		args   amqp.Table
		shared bool
	}{
		{"x-message-ttl negative", amqp.Table{"x-message-ttl": int32(-1)}, false},
		{"x-message-ttl text", amqp.Table{"x-message-ttl": "10"}, false},
		{"x-message-ttl too large", amqp.Table{"x-message-ttl": int64(1) << 40}, false},
		{"x-expires zero", amqp.Table{"x-expires": int32(0)}, false},
		{"x-expires negative", amqp.Table{"x-expires": int32(-5)}, false},
		{"x-max-length negative", amqp.Table{"x-max-length": int32(-1)}, false},
		{"x-max-length text", amqp.Table{"x-max-length": "1"}, false},
		{"x-max-length-bytes negative", amqp.Table{"x-max-length-bytes": int32(-1)}, false},
		{"x-overflow", amqp.Table{"x-overflow": "drop-tail"}, false},
		{"x-max-priority 256", amqp.Table{"x-max-priority": int32(256)}, false},
		{"x-max-priority negative", amqp.Table{"x-max-priority": int32(-1)}, false},
		{"x-dead-letter-exchange number", amqp.Table{"x-dead-letter-exchange": int32(1)}, false},
		{"x-dead-letter-routing-key alone", amqp.Table{"x-dead-letter-routing-key": "k"}, false},
		{"x-dead-letter-routing-key number", amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": int32(1)}, false},
		{"x-single-active-consumer text", amqp.Table{"x-single-active-consumer": "yes"}, false},
		{"x-queue-type unknown", amqp.Table{"x-queue-type": "heap"}, false},
		{"x-queue-mode unknown", amqp.Table{"x-queue-mode": "sleepy"}, false},
		{"quorum, not durable", amqp.Table{"x-queue-type": "quorum"}, true},
	}
	for index, row := range bad {
		queue := t.n(fmt.Sprint("q", index))
		t.fails(row.name, func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, false, false, !row.shared, false, row.args)
			return err
		})
	}
	for index, args := range []amqp.Table{{"x-queue-type": "classic"}, {"x-queue-mode": "lazy"}, {"x-queue-mode": "default"}, {"x-queue-version": int32(2)}, {"x-absent": "ignored"}} {
		must(t.ch().QueueDeclare(t.n(fmt.Sprint("good", index)), false, false, true, false, args))
	}
	t.saw("good ones", true, true)
}

func queueGoodArguments(t *T) {
	for index, args := range []amqp.Table{{"x-message-ttl": int32(0)}, {"x-max-length": int32(0)}, {"x-max-priority": int32(0)}, {"x-expires": int32(1)}, {"x-overflow": "drop-head"}, {"x-dead-letter-exchange": "absent", "x-dead-letter-routing-key": "k"}} {
		must(t.ch().QueueDeclare(t.n(fmt.Sprint("good", index)), false, false, true, false, args))
	}
	t.saw("good ones", true, true)
}

func queueServerNamed(t *T) {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare("", false, true, true, false, nil)).Name
	t.saw("name", []any{strings.HasPrefix(queue, "amq.gen-"), len(queue)}, []any{true, len("amq.gen-") + 22})
	sure(ch, "", queue, text("x"))
	t.saw("used by its name", drain(ch, queue), []string{"x"})
	message, ok := must2(ch.Get("", true))
	t.saw("the empty name is the last declared", []any{ok, string(message.Body)}, []any{false, ""})
	t.fails("an active redeclare of it", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, false, true, true, false, nil)
		return err
	}, fault(403, "ACCESS_REFUSED - queue name 'amq.gen-<gen>' contains reserved prefix 'amq.*'", "channel"))
	t.saw("a passive one", must(t.ch().QueueDeclarePassive(queue, false, true, true, false, nil)).Name == queue, true)
}

func queueExclusive(t *T) {
	owner, other := t.newConn(), t.newConn()
	queue := t.n("q")
	ch := must(owner.Channel())
	must(ch.QueueDeclare(queue, false, false, true, false, nil))
	sibling := must(owner.Channel())
	t.saw("another channel of the owner", must(sibling.QueueDeclare(queue, false, false, true, false, nil)).Name, queue)
	ops := []struct {
		name string
		op   func(*amqp.Channel) error
	}{
		{"declare", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclare(queue, false, false, true, false, nil)
			return err
		}},
		{"passive declare", func(ch *amqp.Channel) error {
			_, err := ch.QueueDeclarePassive(queue, false, false, true, false, nil)
			return err
		}},
		{"consume", func(ch *amqp.Channel) error {
			_, err := ch.Consume(queue, "", true, false, false, false, nil)
			return err
		}},
		{"get", func(ch *amqp.Channel) error { _, _, err := ch.Get(queue, true); return err }},
		{"purge", func(ch *amqp.Channel) error { _, err := ch.QueuePurge(queue, false); return err }},
		{"delete", func(ch *amqp.Channel) error { _, err := ch.QueueDelete(queue, false, false, false); return err }},
		{"bind", func(ch *amqp.Channel) error { return ch.QueueBind(queue, "k", "amq.direct", false, nil) }},
		{"unbind", func(ch *amqp.Channel) error { return ch.QueueUnbind(queue, "k", "amq.direct", nil) }},
	}
	for _, row := range ops {
		if row.name == "unbind" {
			check(ch.QueueBind(queue, "k", "amq.direct", false, nil))
		}
		t.failsOn(other, row.name+" from another connection", row.op, locked(queue))
	}
	foreign := must(other.Channel())
	check(foreign.Confirm(false))
	t.saw("publishing to it is open to all", sure(foreign, "", queue, text("x")), true)
	t.saw("it arrived", drain(ch, queue), []string{"x"})
	t.failsOn(owner, "redeclare as not exclusive", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, false, false, false, false, nil)
		return err
	}, locked(queue))
	check(owner.Close())
	t.failsOn(other, "gone with its connection", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, false, false, true, false, nil)
		return err
	}, notFound(queue))
}

func queueAutoDelete(t *T) {
	ch := t.ch()
	queue := t.n("q")
	must(ch.QueueDeclare(queue, false, true, false, false, nil))
	check(t.ch().Close())
	t.saw("never consumed: stays", must(ch.QueueDeclarePassive(queue, false, true, false, false, nil)).Consumers, 0)
	must(ch.Consume(queue, "one", true, false, false, false, nil))
	must(ch.Consume(queue, "two", true, false, false, false, nil))
	check(ch.Cancel("one", false))
	t.saw("one of two cancelled: stays", must(ch.QueueDeclarePassive(queue, false, true, false, false, nil)).Consumers, 1)
	check(ch.Cancel("two", false))
	t.fails("the last cancelled", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, false, true, false, false, nil)
		return err
	}, notFound(queue))
	ch = t.ch()
	must(ch.QueueDeclare(queue, false, true, false, false, nil))
	must(ch.Consume(queue, "", true, false, false, false, nil))
	check(ch.Close())
	t.fails("the consumer's channel closed", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, false, true, false, false, nil)
		return err
	}, notFound(queue))
}

func queueDelete(t *T) {
	ch := t.confirmCh()
	queue := t.n("q")
	must(ch.QueueDeclare(queue, false, false, false, false, nil))
	for left := 5; left > 0; left-- {
		sure(ch, "", queue, text("x"))
	}
	t.fails("if-empty", func(ch *amqp.Channel) error { _, err := ch.QueueDelete(queue, false, true, false); return err },
		fault(406, "PRECONDITION_FAILED - queue '"+queue+"' in vhost '/' not empty", "channel"))
	holder := t.ch()
	check(holder.Qos(1, 0, false))
	must(holder.Consume(queue, "", false, false, false, false, nil))
	t.fails("if-unused", func(ch *amqp.Channel) error { _, err := ch.QueueDelete(queue, true, false, false); return err },
		fault(406, "PRECONDITION_FAILED - queue '"+queue+"' in vhost '/' in use", "channel"))
	check(holder.Close())
	eventually("all are ready", func() bool {
		return must(ch.QueueDeclarePassive(queue, false, false, false, false, nil)).Messages == 5
	})
	t.saw("delete counts what was ready", must(ch.QueueDelete(queue, false, false, false)), 5)
	t.saw("delete of an absent queue", must(ch.QueueDelete(queue, false, false, false)), 0)
	t.saw("if-unused, if-empty of an absent queue", must(ch.QueueDelete(queue, true, true, false)), 0)
	t.fails("get from a deleted queue", func(ch *amqp.Channel) error { _, _, err := ch.Get(queue, true); return err }, notFound(queue))
	t.fails("purge of a missing queue", func(ch *amqp.Channel) error { _, err := ch.QueuePurge(queue, false); return err }, notFound(queue))
}

func queuePurge(t *T) {
	ch := t.confirmCh()
	queue := t.queues(ch, "q")["q"]
	for index := 0; index < 6; index++ {
		sure(ch, "", queue, text(fmt.Sprint(index)))
	}
	held, _ := must2(ch.Get(queue, false))
	t.saw("purge counts what was ready", must(ch.QueuePurge(queue, false)), 5)
	t.saw("again", must(ch.QueuePurge(queue, false)), 0)
	check(held.Nack(false, true))
	t.saw("what was unacked is left", drain(ch, queue), []string{"0"})
}

func queueMessageTtl(t *T) {
	ch := t.confirmCh()
	dead := t.queues(ch, "dead")["dead"]
	queue := must(ch.QueueDeclare(t.n("q"), false, false, true, false, amqp.Table{"x-message-ttl": int32(150), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})).Name
	expired := must(ch.Consume(dead, "", true, false, false, false, nil))
	sure(ch, "", queue, text("queue's ttl"))
	sure(ch, "", queue, amqp.Publishing{Expiration: "20", Body: []byte("its own, smaller")})
	t.saw("order of expiry is at the head", take(expired, 2), []string{"queue's ttl", "its own, smaller"})
	sure(ch, "", queue, amqp.Publishing{Expiration: "100000", Body: []byte("its own, larger")})
	started := time.Now()
	delivery := next(expired)
	t.saw("the smaller of both holds", []any{string(delivery.Body), time.Since(started) < 2*time.Second, delivery.Expiration}, []any{"its own, larger", true, ""})
	plain := t.queues(ch, "plain")["plain"]
	sure(ch, "", plain, amqp.Publishing{Expiration: "0", Body: []byte("zero")})
	t.saw("expiration 0, no consumer", drain(ch, plain), []string{})
	deliveries := must(ch.Consume(plain, "", true, false, false, false, nil))
	sure(ch, "", plain, amqp.Publishing{Expiration: "0", Body: []byte("zero")})
	t.saw("expiration 0 with a waiting consumer", take(deliveries, 1), []string{"zero"})
	for _, bad := range []string{"1x", "-1", "1.5", "", " 5"} {
		if bad == "" {
			continue
		}
		t.fails("expiration "+bad, func(ch *amqp.Channel) error {
			return ch.Publish("", plain, false, false, amqp.Publishing{Expiration: bad, Body: []byte("x")})
		})
	}
}

func queueExpires(t *T) {
	ch := t.ch()
	queue := t.n("q")
	must(ch.QueueDeclare(queue, false, false, false, false, amqp.Table{"x-expires": int32(400)}))
	for left := 4; left > 0; left-- {
		time.Sleep(200 * time.Millisecond)
		must(ch.QueueDeclarePassive(queue, false, false, false, false, nil))
	}
	t.saw("passive declares keep it", true, true)
	must(ch.Consume(queue, "c", true, false, false, false, nil))
	time.Sleep(900 * time.Millisecond)
	t.saw("a consumer keeps it", must(ch.QueueDeclarePassive(queue, false, false, false, false, nil)).Consumers, 1)
	check(ch.Cancel("c", false))
	time.Sleep(900 * time.Millisecond)
	t.fails("unused for longer", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(queue, false, false, false, false, nil)
		return err
	}, notFound(queue))
}

func queueMaxLength(t *T) {
	ch := t.confirmCh()
	fill := func(queue string, bodies ...string) []bool {
		acked := []bool{}
		for _, body := range bodies {
			acked = append(acked, sure(ch, "", queue, text(body)))
		}
		return acked
	}
	declare := func(name string, args amqp.Table) string {
		return must(ch.QueueDeclare(t.n(name), false, false, true, false, args)).Name
	}
	queue := declare("drop-head", amqp.Table{"x-max-length": int32(3)})
	t.saw("drop-head acks all", fill(queue, "1", "2", "3", "4", "5"), []bool{true, true, true, true, true})
	t.saw("and keeps the newest", drain(ch, queue), []string{"3", "4", "5"})
	queue = declare("reject", amqp.Table{"x-max-length": int32(2), "x-overflow": "reject-publish"})
	acked := fill(queue, "1", "2", "3", "4")
	t.saw("reject-publish nacks", acked, []bool{true, true, false, false})
	t.saw("and keeps the oldest", drain(ch, queue), []string{"1", "2"})
	queue = declare("bytes", amqp.Table{"x-max-length-bytes": int32(10)})
	fill(queue, "12345", "67890", "abc")
	t.saw("by bytes", drain(ch, queue), []string{"67890", "abc"})
	queue = declare("zero", amqp.Table{"x-max-length": int32(0)})
	fill(queue, "1")
	t.saw("zero keeps nothing", drain(ch, queue), []string{})
	dead := t.queues(ch, "dead")["dead"]
	queue = declare("dead-letter", amqp.Table{"x-max-length": int32(1), "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead})
	fill(queue, "1", "2")
	got := next(must(ch.Consume(dead, "", true, false, false, false, nil)))
	t.saw("the head goes to the dead letters", []any{string(got.Body), got.Headers["x-first-death-reason"]}, []any{"1", "maxlen"})
	queue = declare("unacked", amqp.Table{"x-max-length": int32(1)})
	fill(queue, "1")
	held, _ := must2(ch.Get(queue, false))
	fill(queue, "2")
	t.saw("unacked are not counted", must(ch.QueueDeclarePassive(queue, false, false, true, false, nil)).Messages, 1)
	check(held.Ack(false))
}

func tidyDeath(headers amqp.Table) any {
	deaths, _ := headers["x-death"].([]any)
	out := []any{}
	for _, death := range deaths {
		table := death.(amqp.Table)
		entry := map[string]any{}
		for name, value := range table {
			entry[name] = tell(value)
		}
		_, isTime := table["time"].(time.Time)
		entry["time"] = isTime
		out = append(out, entry)
	}
	return out
}

func queueDeadLetters(t *T) {
	ch := t.confirmCh()
	exchange := t.n("dlx")
	check(ch.ExchangeDeclare(exchange, "topic", false, false, false, false, nil))
	dead := t.queues(ch, "dead")["dead"]
	check(ch.QueueBind(dead, "#", exchange, false, nil))
	letters := must(ch.Consume(dead, "", true, false, false, false, nil))
	source := must(ch.QueueDeclare(t.n("source"), false, false, true, false, amqp.Table{"x-dead-letter-exchange": exchange})).Name
	check(ch.QueueBind(source, "way", "amq.direct", false, nil))
	sure(ch, "amq.direct", "way", amqp.Publishing{Headers: amqp.Table{"mine": "kept"}, Expiration: "30", MessageId: "m1", Body: []byte("late")})
	letter := next(letters)
	t.saw("expired", map[string]any{"exchange": letter.Exchange, "key": letter.RoutingKey, "expiration": letter.Expiration, "id": letter.MessageId, "mine": letter.Headers["mine"], "body": string(letter.Body)},
		map[string]any{"exchange": exchange, "key": "way", "expiration": "", "id": "m1", "mine": "kept", "body": "late"})
	t.saw("its x-death", tidyDeath(letter.Headers), []any{map[string]any{"count": "int64 1", "exchange": "string amq.direct", "queue": "string " + source, "reason": "string expired",
		"routing-keys": []any{"string way"}, "time": true, "original-expiration": "string 30"}})
	t.saw("its first death", []any{letter.Headers["x-first-death-reason"], letter.Headers["x-first-death-queue"], letter.Headers["x-first-death-exchange"]},
		[]any{"expired", source, "amq.direct"})
	keyed := must(ch.QueueDeclare(t.n("keyed"), false, false, true, false, amqp.Table{"x-dead-letter-exchange": exchange, "x-dead-letter-routing-key": "the.key"})).Name
	sure(ch, "", keyed, amqp.Publishing{Body: []byte("no"), Headers: amqp.Table{"CC": []any{"also"}}})
	refused, _ := must2(ch.Get(keyed, false))
	check(refused.Nack(false, false))
	letter = next(letters)
	_, cc := letter.Headers["CC"]
	t.saw("rejected, with a routing key of its own", []any{letter.RoutingKey, letter.Headers["x-first-death-reason"], cc}, []any{"the.key", "rejected", false})
	absent := must(ch.QueueDeclare(t.n("absent-dlx"), false, false, true, false, amqp.Table{"x-dead-letter-exchange": t.n("absent")})).Name
	sure(ch, "", absent, text("x"))
	refused, _ = must2(ch.Get(absent, false))
	check(refused.Reject(false))
	t.saw("an absent exchange drops", drain(ch, absent), []string{})
	t.cleanUp(nil, []string{exchange})
}

// A message that dies again in the same queue counts on; another queue adds an entry at the front.
func queueDeadLetterReasons(t *T) {
	ch := t.confirmCh()
	first, second := t.n("first"), t.n("second")
	must(ch.QueueDeclare(first, false, false, true, false, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": second}))
	must(ch.QueueDeclare(second, false, false, true, false, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": first, "x-message-ttl": int32(10)}))
	sure(ch, "", first, text("round"))
	deliveries := must(ch.Consume(first, "", false, false, false, false, nil))
	for round := 0; round < 3; round++ {
		delivery := next(deliveries)
		t.saw(fmt.Sprint("round ", round), map[string]any{"death": tidyDeath(delivery.Headers), "first": delivery.Headers["x-first-death-queue"], "redelivered": delivery.Redelivered})
		check(delivery.Reject(false))
	}
	check(next(deliveries).Ack(false))
}

func queueDeadLetterCycle(t *T) {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare(t.n("q"), false, false, true, false, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": t.n("q"), "x-message-ttl": int32(10)})).Name
	sure(ch, "", queue, text("x"))
	time.Sleep(2 * quiet)
	t.saw("a cycle of expiries ends", must(ch.QueueDeclarePassive(queue, false, false, true, false, nil)).Messages, 0)
	rejecting := must(ch.QueueDeclare(t.n("rejecting"), false, false, true, false, amqp.Table{"x-dead-letter-exchange": "", "x-dead-letter-routing-key": t.n("rejecting")})).Name
	deliveries := must(ch.Consume(rejecting, "", false, false, false, false, nil))
	sure(ch, "", rejecting, text("x"))
	for left := 3; left > 0; left-- {
		check(next(deliveries).Reject(false))
	}
	last := next(deliveries)
	t.saw("a cycle of rejections goes on", tidyDeath(last.Headers))
	check(last.Ack(false))
}

func queuePriority(t *T) {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare(t.n("q"), false, false, true, false, amqp.Table{"x-max-priority": int32(5)})).Name
	for index, priority := range []uint8{0, 3, 5, 200, 1, 3} {
		sure(ch, "", queue, amqp.Publishing{Priority: priority, Body: []byte(fmt.Sprint(index, ":", priority))})
	}
	sure(ch, "", queue, text("none"))
	t.saw("highest first, capped, then by age", drain(ch, queue), []string{"2:5", "3:200", "1:3", "5:3", "4:1", "0:0", "none"})
}

func queueSingleActiveConsumer(t *T) {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare(t.n("q"), false, false, true, false, amqp.Table{"x-single-active-consumer": true})).Name
	first := must(ch.Consume(queue, "first", true, false, false, false, nil))
	second := must(ch.Consume(queue, "second", true, false, false, false, nil))
	for index := 0; index < 4; index++ {
		sure(ch, "", queue, text(fmt.Sprint(index)))
	}
	t.saw("the first gets all", take(first, 4), []string{"0", "1", "2", "3"})
	t.saw("the second nothing", none(second), true)
	check(ch.Cancel("first", false))
	sure(ch, "", queue, text("next"))
	t.saw("then the second", take(second, 1), []string{"next"})
	sure(ch, "", queue, text("last"))
	t.saw("the last one too", take(second, 1), []string{"last"})
	_, ok := must2(ch.Get(queue, true))
	t.saw("get is allowed on a classic one", ok, false)
	t.fails("exclusive consumer", func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", true, true, false, false, nil)
		return err
	})
}

func queueQuorum(t *T) {
	ch := t.confirmCh()
	queue := t.n("q")
	made := must(ch.QueueDeclare(queue, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": int32(2)}))
	t.saw("declared", []any{made.Messages, made.Consumers}, []any{0, 0})
	t.saw("confirmed", sure(ch, "", queue, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")}), true)
	deliveries := must(ch.Consume(queue, "", false, false, false, false, nil))
	for attempt := 0; attempt < 3; attempt++ {
		delivery := next(deliveries)
		t.saw(fmt.Sprint("attempt ", attempt), []any{delivery.Redelivered, tell(delivery.Headers["x-delivery-count"])})
		check(delivery.Reject(true))
	}
	t.saw("past its delivery limit", none(deliveries), true)
	t.fails("exclusive", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(t.n("exclusive"), true, false, true, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum})
		return err
	})
	t.fails("redeclare as classic", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(queue, true, false, false, false, amqp.Table{"x-delivery-limit": int32(2)})
		return err
	})
	single := t.n("single")
	must(ch.QueueDeclare(single, true, false, false, false, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, amqp.SingleActiveConsumerArg: true}))
	must(ch.Consume(single, "", false, false, false, false, nil))
	t.fails("get where a single consumer is active", func(ch *amqp.Channel) error { _, _, err := ch.Get(single, true); return err })
	t.cleanUp([]string{queue, single}, nil)
}
