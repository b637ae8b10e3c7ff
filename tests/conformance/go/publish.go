package main

import (
	"fmt"
	"sort"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var publishScenarios = []scenario{
	{name: "publish.properties", run: publishProperties},
	{name: "publish.header-types", run: publishHeaderTypes},
	{name: "publish.sizes", run: publishSizes},
	{name: "publish.mandatory", run: publishMandatory},
	{name: "publish.errors", run: publishErrors},
	{name: "publish.cc", run: publishCc},
	{name: "confirm.sequence", run: confirmSequence},
	{name: "confirm.deferred", run: confirmDeferred},
	{name: "confirm.return-before-ack", run: confirmReturnBeforeAck},
	{name: "confirm.kinds", run: confirmKinds},
	{name: "confirm.many-publishers", run: confirmManyPublishers},
	{name: "confirm.mode", run: confirmMode},
	{name: "tx.commit", run: txCommit},
	{name: "tx.rollback", run: txRollback},
	{name: "tx.acks", run: txAcks},
	{name: "tx.errors", run: txErrors},
}

// tell writes a table's value with its Go type, so that a change of width shows.
func tell(value any) any {
	switch value := value.(type) {
	case amqp.Table:
		told := map[string]any{}
		for name, inner := range value {
			told[name] = tell(inner)
		}
		return told
	case []any:
		told := []any{}
		for _, inner := range value {
			told = append(told, tell(inner))
		}
		return told
	case time.Time:
		return fmt.Sprint("time ", value.Unix())
	case []byte:
		return fmt.Sprintf("bytes %x", value)
	case nil:
		return nil
	default:
		return fmt.Sprintf("%T %v", value, value)
	}
}

func roundTrip(t *T, message amqp.Publishing) amqp.Delivery {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare("", false, true, true, false, nil)).Name
	sure(ch, "", queue, message)
	got, ok := must2(ch.Get(queue, true))
	if !ok {
		panic("nothing came back")
	}
	check(ch.Close())
	return got
}

func publishProperties(t *T) {
	stamp := time.Unix(1_700_000_000, 0)
	got := roundTrip(t, amqp.Publishing{
		ContentType: "application/json", ContentEncoding: "gzip", DeliveryMode: amqp.Persistent, Priority: 7, CorrelationId: "c-1", ReplyTo: "r-1",
		Expiration: "60000", MessageId: "m-1", Timestamp: stamp, Type: "t-1", UserId: "guest", AppId: "a-1", Headers: amqp.Table{"h": "v"}, Body: []byte("body"),
	})
	t.saw("all of them", []any{got.ContentType, got.ContentEncoding, got.DeliveryMode, got.Priority, got.CorrelationId, got.ReplyTo, got.Expiration, got.MessageId,
		got.Timestamp.Unix(), got.Type, got.UserId, got.AppId, tell(got.Headers), string(got.Body)},
		[]any{"application/json", "gzip", 2, 7, "c-1", "r-1", "60000", "m-1", 1_700_000_000, "t-1", "guest", "a-1", map[string]any{"h": "string v"}, "body"})
	got = roundTrip(t, amqp.Publishing{})
	t.saw("none of them", []any{got.ContentType, got.DeliveryMode, got.Priority, got.Expiration, got.Timestamp.IsZero(), len(got.Headers), len(got.Body), got.Redelivered, got.DeliveryTag, got.MessageCount},
		[]any{"", 0, 0, "", true, 0, 0, false, 1, 0})
	got = roundTrip(t, amqp.Publishing{MessageId: string(pattern(255)), Headers: amqp.Table{"empty": "", "": "empty name"}})
	t.saw("longest short string, empty names", []any{got.MessageId == string(pattern(255)), tell(got.Headers)}, []any{true, map[string]any{"empty": "string ", "": "string empty name"}})
}

func publishHeaderTypes(t *T) {
	headers := amqp.Table{
		"bool": true, "false": false, "int8": int8(-7), "byte": byte(200), "int16": int16(-300), "uint16": uint16(60000), "int32": int32(-70000), "int": 5, "uint32": uint32(4_000_000_000),
		"int64": int64(-5_000_000_000), "float32": float32(1.5), "float64": 3.141592653589793, "decimal": amqp.Decimal{Scale: 2, Value: 314}, "string": "żółw", "bytes": []byte{0, 255, 7},
		"time": time.Unix(1_700_000_001, 0), "nil": nil, "table": amqp.Table{"inner": amqp.Table{"deep": int64(1)}, "list": []any{}}, "array": []any{"a", int32(1), nil, []any{true}, amqp.Table{"k": "v"}}, "empty-table": amqp.Table{},
	}
	want := tell(headers).(map[string]any)
	want["int"] = "int32 5"
	t.saw("every type", tell(roundTrip(t, amqp.Publishing{Headers: headers}).Headers), want)
	large := amqp.Table{}
	for index := 0; index < 1000; index++ {
		large[fmt.Sprint("header-", index)] = int32(index)
	}
	t.saw("a thousand headers", len(roundTrip(t, amqp.Publishing{Headers: large}).Headers), 1000)
	nested := amqp.Table{"end": "here"}
	for left := 30; left > 0; left-- {
		nested = amqp.Table{"in": nested}
	}
	t.saw("thirty deep", fmt.Sprint(tell(roundTrip(t, amqp.Publishing{Headers: nested}).Headers)) == fmt.Sprint(tell(nested)), true)
}

func publishSizes(t *T) {
	for _, size := range []int{0, 1, 131_063, 131_064, 131_065, 262_128, 1 << 20, 9_000_001} {
		got := roundTrip(t, amqp.Publishing{Body: pattern(size)})
		t.saw(fmt.Sprint(size, " bytes"), string(got.Body) == string(pattern(size)), true)
	}
}

func publishMandatory(t *T) {
	ch := t.ch()
	returns := ch.NotifyReturn(make(chan amqp.Return, 4))
	check(ch.Publish("", t.n("nowhere"), true, false, amqp.Publishing{MessageId: "m", Headers: amqp.Table{"h": int32(1)}, Body: []byte("back")}))
	got := nextOf("return", returns)
	t.saw("unroutable", []any{got.ReplyCode, got.ReplyText, got.Exchange, got.RoutingKey, got.MessageId, tell(got.Headers), string(got.Body)},
		[]any{312, "NO_ROUTE", "", t.n("nowhere"), "m", map[string]any{"h": "int32 1"}, "back"})
	check(ch.Publish("amq.topic", "no.one", true, false, amqp.Publishing{Body: pattern(200_000)}))
	got = nextOf("return", returns)
	t.saw("a large one comes back whole", []any{got.ReplyCode, got.Exchange, got.RoutingKey, string(got.Body) == string(pattern(200_000))}, []any{312, "amq.topic", "no.one", true})
	queue := t.queues(ch, "q")["q"]
	check(ch.Publish("", queue, true, false, text("routed")))
	publish(ch, "", t.n("nowhere"), "not mandatory")
	check(ch.Flow(true))
	t.saw("routed, or not mandatory: no return", len(returns), 0)
}

func publishErrors(t *T) {
	missing := fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel")
	t.fails("missing exchange", func(ch *amqp.Channel) error { return ch.Publish(t.n("missing"), "k", false, false, text("x")) }, missing)
	t.fails("missing exchange, mandatory, confirms", func(ch *amqp.Channel) error {
		check(ch.Confirm(false))
		return ch.Publish(t.n("missing"), "k", true, false, text("x"))
	}, missing)
	t.fails("immediate", func(ch *amqp.Channel) error { return ch.Publish("", "k", false, true, text("x")) }, fault(540, "NOT_IMPLEMENTED - immediate=true", "connection"))
	t.fails("another's user id", func(ch *amqp.Channel) error {
		return ch.Publish("", "k", false, false, amqp.Publishing{UserId: "someone"})
	}, fault(406, "PRECONDITION_FAILED - user_id property set to 'someone' but authenticated user was 'guest'", "channel"))
	t.fails("bad expiration", func(ch *amqp.Channel) error {
		return ch.Publish("", "k", false, false, amqp.Publishing{Expiration: "soon"})
	})
	t.fails("CC is not an array", func(ch *amqp.Channel) error {
		return ch.Publish("", "k", false, false, amqp.Publishing{Headers: amqp.Table{"CC": "one"}})
	})
}

func publishCc(t *T) {
	ch := t.confirmCh()
	q := t.queues(ch, "to", "cc", "bcc")
	sure(ch, "", q["to"], amqp.Publishing{Headers: amqp.Table{"CC": []any{q["cc"], q["to"]}, "BCC": []any{q["bcc"]}, "mine": "kept"}, Body: []byte("x")})
	for _, name := range []string{"to", "cc", "bcc"} {
		got, ok := must2(ch.Get(q[name], true))
		t.saw(name, []any{ok, tell(got.Headers), got.RoutingKey, got.MessageCount},
			[]any{true, map[string]any{"CC": []any{"string " + q["cc"], "string " + q["to"]}, "mine": "string kept"}, q["to"], 0})
	}
}

// Confirms with multiple: the library unfolds them, every tag settles exactly once.
func confirmSequence(t *T) {
	ch := t.confirmCh()
	const count = 3000
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation, count))
	queue := t.queues(ch, "q")["q"]
	t.saw("first number", ch.GetNextPublishSeqNo(), 1)
	for left := count; left > 0; left-- {
		publish(ch, "", queue, "x")
	}
	var tags []int
	acked := true
	for left := count; left > 0; left-- {
		confirm := nextOf("confirm", confirms)
		tags = append(tags, int(confirm.DeliveryTag))
		acked = acked && confirm.Ack
	}
	sort.Ints(tags)
	once := true
	for index, tag := range tags {
		once = once && tag == index+1
	}
	t.saw("each tag once, all acks", []bool{once, acked}, []bool{true, true})
	t.saw("next number", ch.GetNextPublishSeqNo(), count+1)
	t.saw("all in the queue", must(ch.QueuePurge(queue, false)), count)
}

func confirmDeferred(t *T) {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare(t.n("q"), true, false, false, false, nil)).Name
	var pending []*amqp.DeferredConfirmation
	for left := 500; left > 0; left-- {
		pending = append(pending, must(ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{DeliveryMode: amqp.Persistent, Body: []byte("x")})))
	}
	acked := 0
	for _, confirmation := range pending {
		nextOf("confirm", confirmation.Done())
		if confirmation.Acked() {
			acked++
		}
	}
	t.saw("500 persistent messages acked", acked, 500)
	t.saw("tags", []uint64{pending[0].DeliveryTag, pending[499].DeliveryTag}, []uint64{1, 500})
	t.cleanUp([]string{queue}, nil)
}

// Both listeners unbuffered and in one goroutine's select would hide the order; the
// library calls return listeners and confirm listeners from its one reader.
func confirmReturnBeforeAck(t *T) {
	ch := t.confirmCh()
	returns := ch.NotifyReturn(make(chan amqp.Return))
	confirms := ch.NotifyPublish(make(chan amqp.Confirmation))
	var events []string
	done := make(chan struct{})
	go func() {
		defer close(done)
		for len(events) < 6 {
			select {
			case message, open := <-returns:
				if !open {
					return
				}
				events = append(events, "return "+string(message.Body))
			case confirm, open := <-confirms:
				if !open {
					return
				}
				events = append(events, fmt.Sprint("ack ", confirm.DeliveryTag, " ", confirm.Ack))
			}
		}
	}()
	for index := 0; index < 3; index++ {
		check(ch.Publish("", t.n("nowhere"), true, false, text(fmt.Sprint(index+1))))
	}
	select {
	case <-done:
	case <-time.After(patience):
		panic(fmt.Sprint("returns and confirms missing"))
	}
	before := true
	seen := map[string]bool{}
	for _, event := range events {
		seen[event] = true
	}
	for index := 0; index < 3; index++ {
		for _, event := range events {
			if event == fmt.Sprint("return ", index+1) {
				break
			}
			if event == fmt.Sprint("ack ", index+1, " true") {
				before = false
			}
		}
	}
	t.saw("every return strictly before its ack", []any{before, len(seen)}, []any{true, 6})
}

func confirmKinds(t *T) {
	ch := t.confirmCh()
	t.saw("unroutable", sure(ch, "", t.n("nowhere"), text("x")), true)
	queue := t.queues(ch, "q")["q"]
	t.saw("empty body", sure(ch, "", queue, amqp.Publishing{}), true)
	t.saw("expired at once", sure(ch, "", queue, amqp.Publishing{Expiration: "0"}), true)
	fan := t.n("fan")
	check(ch.ExchangeDeclare(fan, "fanout", false, true, false, false, nil))
	for index := 0; index < 20; index++ {
		name := t.queues(ch, fmt.Sprint("f", index))[fmt.Sprint("f", index)]
		check(ch.QueueBind(name, "", fan, false, nil))
	}
	t.saw("to twenty queues", sure(ch, fan, "", amqp.Publishing{DeliveryMode: 2, Body: []byte("x")}), true)
	confirmation := must(ch.PublishWithDeferredConfirm("", queue, false, false, text("x")))
	must(ch.QueueDelete(queue, false, false, false))
	nextOf("confirm", confirmation.Done())
	t.saw("queue deleted right after", confirmation.Acked(), true)
}

func confirmManyPublishers(t *T) {
	const publishers, each = 20, 200
	queue := t.n("q")
	setup := t.ch()
	must(setup.QueueDeclare(queue, true, false, false, false, nil))
	var work sync.WaitGroup
	nacks := make(chan string, publishers*each)
	for left := publishers; left > 0; left-- {
		conn := t.newConn()
		work.Add(1)
		go func() {
			defer work.Done()
			ch, err := conn.Channel()
			if err == nil {
				err = ch.Confirm(false)
			}
			for index := 0; err == nil && index < each; index++ {
				var confirmation *amqp.DeferredConfirmation
				confirmation, err = ch.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{DeliveryMode: 2, Body: pattern(300)})
				if err == nil && index%20 == 19 && !confirmation.Wait() {
					nacks <- "nack"
				}
			}
			if err != nil {
				nacks <- err.Error()
			}
		}()
	}
	work.Wait()
	t.saw("nacks and errors of 20 publishers", len(nacks), 0)
	t.saw("messages", must(setup.QueueDeclarePassive(queue, true, false, false, false, nil)).Messages, publishers*each)
	t.cleanUp([]string{queue}, nil)
}

func confirmMode(t *T) {
	ch := t.confirmCh()
	check(ch.Confirm(false))
	t.saw("select again", sure(ch, "", t.n("nowhere"), text("x")), true)
	t.fails("confirm after tx", func(ch *amqp.Channel) error { check(ch.Tx()); return ch.Confirm(false) },
		fault(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode", "channel"))
	t.fails("tx after confirm", func(ch *amqp.Channel) error { check(ch.Confirm(false)); return ch.Tx() },
		fault(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode", "channel"))
}

func txCommit(t *T) {
	ch, reader := t.ch(), t.ch()
	queue := t.queues(ch, "q")["q"]
	check(ch.Tx())
	check(ch.Tx())
	for index := 0; index < 3; index++ {
		publish(ch, "", queue, fmt.Sprint(index))
	}
	must(ch.QueueDeclarePassive(queue, false, true, true, false, nil))
	t.saw("held until the commit", drain(reader, queue), []string{})
	check(ch.TxCommit())
	t.saw("after it", drain(reader, queue), []string{"0", "1", "2"})
	publish(ch, "", queue, "second transaction")
	check(ch.TxCommit())
	t.saw("the next begins by itself", drain(reader, queue), []string{"second transaction"})
	returns := ch.NotifyReturn(make(chan amqp.Return, 1))
	check(ch.Publish("", t.n("nowhere"), true, false, text("x")))
	must(ch.QueueDeclarePassive(queue, false, true, true, false, nil))
	t.saw("a return waits for the commit too", len(returns), 0)
	check(ch.TxCommit())
	t.saw("then comes", nextOf("return", returns).ReplyCode, 312)
	publish(ch, "", queue, "lost")
	check(ch.Close())
	t.saw("channel closed without a commit", drain(reader, queue), []string{})
}

func txRollback(t *T) {
	ch, reader := t.ch(), t.ch()
	queue := t.queues(ch, "q")["q"]
	check(ch.Tx())
	publish(ch, "", queue, "undone")
	check(ch.TxRollback())
	publish(ch, "", queue, "done")
	check(ch.TxCommit())
	t.saw("only what came after", drain(reader, queue), []string{"done"})
	check(ch.TxRollback())
	check(ch.TxCommit())
	t.saw("empty rollback and commit", ch.IsClosed(), false)
}

func txAcks(t *T) {
	setup, ch := t.confirmCh(), t.ch()
	queue := t.queues(setup, "q")["q"]
	for index := 0; index < 3; index++ {
		sure(setup, "", queue, text(fmt.Sprint(index)))
	}
	check(ch.Tx())
	deliveries := must(ch.Consume(queue, "", false, false, false, false, nil))
	take := []amqp.Delivery{next(deliveries), next(deliveries), next(deliveries)}
	check(take[0].Ack(false))
	check(ch.TxRollback())
	check(take[0].Ack(false))
	check(take[1].Nack(false, false))
	check(ch.TxCommit())
	check(take[2].Ack(false))
	check(ch.Close())
	got, ok := must2(setup.Get(queue, true))
	t.saw("the ack that was not committed comes back", []any{ok, string(got.Body), got.Redelivered}, []any{true, "2", true})
	t.saw("and nothing else", drain(setup, queue), []string{})
}

func txErrors(t *T) {
	t.fails("commit without select", func(ch *amqp.Channel) error { return ch.TxCommit() }, fault(406, "PRECONDITION_FAILED - channel is not transactional", "channel"))
	t.fails("rollback without select", func(ch *amqp.Channel) error { return ch.TxRollback() }, fault(406, "PRECONDITION_FAILED - channel is not transactional", "channel"))
	t.fails("missing exchange, at the publish", func(ch *amqp.Channel) error {
		check(ch.Tx())
		return ch.Publish(t.n("missing"), "k", false, false, text("x"))
	}, fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel"))
	t.fails("unknown tag, at the ack", func(ch *amqp.Channel) error { check(ch.Tx()); return ch.Ack(7, false) },
		fault(406, "PRECONDITION_FAILED - unknown delivery tag 7", "channel"))
}
