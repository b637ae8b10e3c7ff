package main

import (
	"fmt"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

var consumeScenarios = []scenario{
	{name: "consume.basics", run: consumeBasics},
	{name: "consume.order", run: consumeOrder},
	{name: "consume.qos", run: consumeQos},
	{name: "consume.qos-global", run: consumeQosGlobal},
	{name: "consume.nack", run: consumeNack},
	{name: "consume.recover", run: consumeRecover},
	{name: "consume.ack-errors", run: consumeAckErrors},
	{name: "consume.close-requeues", run: consumeCloseRequeues},
	{name: "consume.cancel", run: consumeCancel},
	{name: "consume.server-cancel", run: consumeServerCancel},
	{name: "consume.exclusive", run: consumeExclusive},
	{name: "consume.priority", run: consumePriority},
	{name: "consume.fair", run: consumeFair},
	{name: "consume.errors", run: consumeErrors},
	{name: "get.counts", run: getCounts},
	{name: "rpc.direct-reply-to", run: rpcDirectReplyTo},
	{name: "rpc.errors", run: rpcErrors},
	{name: "rpc.queue", run: rpcQueue},
	{name: "flow.round-trip", run: flowRoundTrip},
}

// filled declares a queue with the bodies 0, 1, … count-1.
func (t *T) filled(name string, count int) string {
	ch := t.confirmCh()
	queue := t.queues(ch, name)[name]
	t.fill(queue, 0, count)
	return queue
}

func (t *T) fill(queue string, from, to int) {
	ch := t.confirmCh()
	var last *amqp.DeferredConfirmation
	for index := from; index < to; index++ {
		last = must(ch.PublishWithDeferredConfirm("", queue, false, false, text(fmt.Sprint(index))))
	}
	if last != nil {
		nextOf("confirm", last.Done())
	}
	check(ch.Close())
}

func (t *T) ready(queue string) int {
	ch := t.ch()
	defer ch.Close()
	return must(ch.QueueDeclarePassive(queue, false, true, true, false, nil)).Messages
}

func consumeBasics(t *T) {
	ch := t.ch()
	queue := t.filled("q", 2)
	deliveries := must(ch.Consume(queue, "my-tag", false, false, false, false, nil))
	first, second := next(deliveries), next(deliveries)
	t.saw("first", []any{first.ConsumerTag, first.DeliveryTag, first.Redelivered, first.Exchange, first.RoutingKey == queue, string(first.Body), first.ContentType},
		[]any{"my-tag", 1, false, "", true, "0", "text/plain"})
	t.saw("second", []any{second.DeliveryTag, string(second.Body)}, []any{2, "1"})
	check(second.Ack(true))
	t.fill(queue, 2, 3)
	third := next(deliveries)
	t.saw("third", []any{third.DeliveryTag, string(third.Body)}, []any{3, "2"})
	check(third.Ack(false))
	other := t.ch()
	noWait := must(other.Consume(queue, "quick", true, false, false, true, nil))
	check(ch.Cancel("my-tag", false))
	t.fill(queue, 3, 4)
	t.saw("a consumer started without waiting, no acks", take(noWait, 1), []string{"3"})
	check(other.Close())
	t.saw("nothing left", t.ready(queue), 0)
}

func consumeOrder(t *T) {
	const count = 5000
	ch := t.ch()
	queue := t.queues(ch, "q")["q"]
	check(ch.Qos(100, 0, false))
	deliveries := must(ch.Consume(queue, "", false, false, false, false, nil))
	go t.fill(queue, 0, count)
	ordered := true
	for index := 0; index < count; index++ {
		delivery := next(deliveries)
		ordered = ordered && string(delivery.Body) == fmt.Sprint(index) && delivery.DeliveryTag == uint64(index+1) && !delivery.Redelivered
		if index%50 == 49 {
			check(delivery.Ack(true))
		}
	}
	t.saw("5000 in order", ordered, true)
}

func consumeQos(t *T) {
	ch := t.ch()
	queue := t.filled("q", 10)
	check(ch.Qos(3, 0, false))
	deliveries := must(ch.Consume(queue, "limited", false, false, false, false, nil))
	held := []amqp.Delivery{next(deliveries), next(deliveries), next(deliveries)}
	t.saw("three, then none", none(deliveries), true)
	check(held[0].Ack(false))
	t.saw("one more for an ack", string(next(deliveries).Body), "3")
	check(held[1].Reject(false))
	t.saw("one more for a reject", string(next(deliveries).Body), "4")
	check(held[2].Nack(false, true))
	again := next(deliveries)
	t.saw("the requeued one for a requeue", []any{string(again.Body), again.Redelivered}, []any{"2", true})
	got, _ := must2(ch.Get(queue, true))
	t.saw("get is not limited", string(got.Body), "5")
	other := t.filled("other", 10)
	check(ch.Qos(1, 0, false))
	second := must(ch.Consume(other, "later", false, false, false, false, nil))
	next(second)
	t.saw("a later consumer has the later limit", none(second), true)
	check(again.Ack(true))
	t.saw("the earlier one keeps its own", take(deliveries, 3), []string{"6", "7", "8"})
	check(ch.Close())
	ch = t.ch()
	check(ch.Qos(1, 0, false))
	free := must(ch.Consume(t.filled("free", 5), "", true, false, false, false, nil))
	t.saw("no limit without acks", take(free, 5), []string{"0", "1", "2", "3", "4"})
	t.fails("by size", func(ch *amqp.Channel) error { return ch.Qos(0, 10, false) }, fault(540, "NOT_IMPLEMENTED - prefetch_size!=0 (10)", "connection"))
}

func consumeQosGlobal(t *T) {
	ch := t.ch()
	one, two := t.filled("one", 10), t.filled("two", 10)
	check(ch.Qos(3, 0, true))
	first := must(ch.Consume(one, "", false, false, false, false, nil))
	held := []amqp.Delivery{next(first), next(first), next(first)}
	second := must(ch.Consume(two, "", false, false, false, false, nil))
	t.saw("the channel's limit is used up by the first", []bool{none(first), none(second)}, []bool{true, true})
	check(held[2].Ack(true))
	total := 0
	for left := 3; left > 0; left-- {
		select {
		case <-first:
			total++
		case <-second:
			total++
		case <-time.After(patience):
		}
	}
	t.saw("three more for three acks", []any{total, none(first), none(second)}, []any{3, true, true})
	check(ch.Qos(5, 0, true))
	total = 0
	for left := 2; left > 0; left-- {
		select {
		case <-first:
			total++
		case <-second:
			total++
		case <-time.After(patience):
		}
	}
	t.saw("raised at once", []any{total, none(first), none(second)}, []any{2, true, true})
	check(ch.Qos(0, 0, true))
	total = 0
	for left := 12; left > 0; left-- {
		select {
		case <-first:
			total++
		case <-second:
			total++
		case <-time.After(patience):
		}
	}
	t.saw("without a limit", total, 12)
}

func consumeNack(t *T) {
	ch := t.ch()
	queue := t.filled("q", 5)
	var held []amqp.Delivery
	for left := 4; left > 0; left-- {
		got, _ := must2(ch.Get(queue, false))
		held = append(held, got)
	}
	check(held[1].Nack(false, true))
	check(held[2].Nack(false, false))
	check(held[0].Reject(true))
	var seen []any
	for {
		got, ok := must2(ch.Get(queue, true))
		if !ok {
			break
		}
		seen = append(seen, []any{string(got.Body), got.Redelivered})
	}
	t.saw("requeued to the old places", seen, []any{[]any{"0", true}, []any{"1", true}, []any{"4", false}})
	check(held[3].Ack(false))
	queue = t.filled("multiple", 4)
	deliveries := must(ch.Consume(queue, "", false, false, false, false, nil))
	held = nil
	for left := 4; left > 0; left-- {
		held = append(held, next(deliveries))
	}
	check(ch.Cancel(held[0].ConsumerTag, false))
	check(held[2].Nack(true, true))
	eventually("three are back", func() bool { return t.ready(queue) == 3 })
	t.saw("nack of many", drain(t.ch(), queue), []string{"0", "1", "2"})
	check(ch.Nack(0, true, true))
	eventually("the last is back", func() bool { return t.ready(queue) == 1 })
	t.saw("nack of all", drain(t.ch(), queue), []string{"3"})
}

func consumeRecover(t *T) {
	ch := t.ch()
	queue := t.filled("q", 3)
	deliveries := must(ch.Consume(queue, "", false, false, false, false, nil))
	for left := 3; left > 0; left-- {
		next(deliveries)
	}
	check(ch.Recover(true))
	var seen []any
	for left := 3; left > 0; left-- {
		delivery := next(deliveries)
		seen = append(seen, []any{string(delivery.Body), delivery.Redelivered, delivery.DeliveryTag})
	}
	t.saw("recovered", seen, []any{[]any{"0", true, 4}, []any{"1", true, 5}, []any{"2", true, 6}})
	check(ch.Ack(0, true))
	check(ch.Ack(0, true))
	check(ch.Close())
	t.saw("ack of all, twice", t.ready(queue), 0)
	t.fails("recover without requeue", func(ch *amqp.Channel) error { return ch.Recover(false) }, fault(540, "NOT_IMPLEMENTED - requeue=false", "connection"))
}

func consumeAckErrors(t *T) {
	unknown := func(tag int) map[string]any {
		return fault(406, fmt.Sprintf("PRECONDITION_FAILED - unknown delivery tag %d", tag), "channel")
	}
	t.fails("ack of what never was", func(ch *amqp.Channel) error { return ch.Ack(1, false) }, unknown(1))
	t.fails("nack of what never was", func(ch *amqp.Channel) error { return ch.Nack(5, false, true) }, unknown(5))
	t.fails("reject of what never was", func(ch *amqp.Channel) error { return ch.Reject(6, true) }, unknown(6))
	t.fails("multiple ack of what never was", func(ch *amqp.Channel) error { return ch.Ack(9, true) }, unknown(9))
	t.fails("tag 0 alone", func(ch *amqp.Channel) error { return ch.Ack(0, false) }, unknown(0))
	queue := t.filled("q", 2)
	t.fails("ack twice", func(ch *amqp.Channel) error {
		got, _ := must2(ch.Get(queue, false))
		check(got.Ack(false))
		return got.Ack(false)
	}, unknown(1))
	t.fails("ack of a delivery without acks", func(ch *amqp.Channel) error {
		got, _ := must2(ch.Get(queue, true))
		return got.Ack(false)
	}, unknown(1))
	t.saw("the first stays acked", t.ready(queue), 0)
}

func consumeCloseRequeues(t *T) {
	queue := t.filled("q", 3)
	ch := t.ch()
	deliveries := must(ch.Consume(queue, "", false, false, false, false, nil))
	check(next(deliveries).Ack(false))
	next(deliveries)
	next(deliveries)
	check(ch.Close())
	reader := t.ch()
	var seen []any
	for left := 2; left > 0; left-- {
		got, _ := must2(reader.Get(queue, true))
		seen = append(seen, []any{string(got.Body), got.Redelivered})
	}
	t.saw("what was not acked is back, in order", seen, []any{[]any{"1", true}, []any{"2", true}})
}

func consumeCancel(t *T) {
	ch := t.ch()
	queue := t.filled("q", 2)
	check(ch.Qos(1, 0, false))
	deliveries := must(ch.Consume(queue, "c", false, false, false, false, nil))
	held := next(deliveries)
	check(ch.Cancel("c", false))
	_, open := <-deliveries
	t.saw("the deliveries end", open, false)
	t.saw("what was unacked stays with the channel", t.ready(queue), 1)
	check(held.Ack(false))
	check(ch.Cancel("never-was", false))
	t.saw("cancel of an unknown tag", ch.IsClosed(), false)
	again := must(ch.Consume(queue, "c", false, false, false, false, nil))
	t.saw("the tag is free again", string(next(again).Body), "1")
	check(ch.Cancel("c", true))
	t.saw("cancelled without waiting", must(ch.QueueDeclarePassive(queue, false, true, true, false, nil)).Consumers, 0)
}

func consumeServerCancel(t *T) {
	ch := t.ch()
	cancels := ch.NotifyCancel(make(chan string, 2))
	queue := t.n("q")
	must(t.ch().QueueDeclare(queue, false, false, false, false, nil))
	deliveries := must(ch.Consume(queue, "mine", false, false, false, false, nil))
	must(t.ch().QueueDelete(queue, false, false, false))
	t.saw("told", nextOf("cancel", cancels), "mine")
	_, open := <-deliveries
	t.saw("the deliveries end", open, false)
	check(ch.Cancel("mine", false))
	t.saw("our own cancel afterwards", ch.IsClosed(), false)
	must(ch.QueueDeclare("", false, true, true, false, nil))
	t.saw("the channel goes on", ch.IsClosed(), false)
}

func consumeExclusive(t *T) {
	queue := t.filled("q", 0)
	ch := t.ch()
	must(ch.Consume(queue, "sole", false, true, false, false, nil))
	refused := fault(403, "ACCESS_REFUSED - queue '"+queue+"' in vhost '/' in exclusive use", "channel")
	t.fails("a second one", func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", false, false, false, false, nil)
		return err
	}, refused)
	check(ch.Cancel("sole", false))
	must(ch.Consume(queue, "shared", false, false, false, false, nil))
	t.fails("exclusive after a shared one", func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", false, true, false, false, nil)
		return err
	}, refused)
}

func consumePriority(t *T) {
	queue := t.filled("q", 0)
	ch := t.ch()
	low := must(ch.Consume(queue, "low", true, false, false, false, nil))
	high := must(ch.Consume(queue, "high", true, false, false, false, amqp.Table{"x-priority": int32(10)}))
	t.fill(queue, 0, 4)
	t.saw("the high one gets all", []any{take(high, 4), none(low)}, []any{[]string{"0", "1", "2", "3"}, true})
	check(ch.Cancel("high", false))
	t.fill(queue, 4, 6)
	t.saw("then the low one", take(low, 2), []string{"4", "5"})
}

func consumeFair(t *T) {
	queue := t.filled("q", 0)
	var consumers []<-chan amqp.Delivery
	for left := 3; left > 0; left-- {
		ch := t.ch()
		check(ch.Qos(1, 0, false))
		consumers = append(consumers, must(ch.Consume(queue, "", false, false, false, false, nil)))
	}
	t.fill(queue, 0, 30)
	counts := []int{0, 0, 0}
	for left := 10; left > 0; left-- {
		for index, deliveries := range consumers {
			check(next(deliveries).Ack(false))
			counts[index]++
		}
	}
	t.saw("three consumers with one message each at a time", counts, []int{10, 10, 10})
}

func consumeErrors(t *T) {
	t.fails("missing queue", func(ch *amqp.Channel) error {
		_, err := ch.Consume(t.n("missing"), "", true, false, false, false, nil)
		return err
	}, notFound(t.n("missing")))
	queue := t.filled("q", 0)
	// The library refuses a tag it knows itself; without waiting the second frame is what the broker sees.
	t.fails("tag used twice on a channel", func(ch *amqp.Channel) error {
		must(ch.Consume(queue, "same", true, false, false, false, nil))
		_, err := ch.Consume(queue, "same", true, false, false, false, nil)
		return err
	}, fault(530, "NOT_ALLOWED - attempt to reuse consumer tag 'same'", "connection"))
	queue = must(t.ch().QueueDeclare(t.n("q2"), false, false, true, false, nil)).Name
	t.fails("priority that is no number", func(ch *amqp.Channel) error {
		_, err := ch.Consume(queue, "", true, false, false, false, amqp.Table{"x-priority": "high"})
		return err
	})
	one, two := t.ch(), t.ch()
	must(one.Consume(queue, "same", true, false, false, false, nil))
	must(two.Consume(queue, "same", true, false, false, false, nil))
	t.saw("the same tag on two channels", must(one.QueueDeclarePassive(queue, false, false, true, false, nil)).Consumers, 2)
	long := t.ch()
	must(long.Consume(queue, strings.Repeat("t", 255), true, false, false, false, nil))
	t.saw("a tag of 255 bytes", long.IsClosed(), false)
}

func getCounts(t *T) {
	ch := t.ch()
	queue := t.filled("q", 3)
	var seen []any
	for left := 4; left > 0; left-- {
		got, ok := must2(ch.Get(queue, false))
		seen = append(seen, []any{ok, string(got.Body), got.MessageCount, got.DeliveryTag, got.Redelivered})
	}
	t.saw("count is what is left, tags go up", seen, []any{[]any{true, "0", 2, 1, false}, []any{true, "1", 1, 2, false}, []any{true, "2", 0, 3, false}, []any{false, "", 0, 0, false}})
	check(ch.Reject(2, true))
	got, _ := must2(ch.Get(queue, false))
	t.saw("again", []any{string(got.Body), got.DeliveryTag, got.Redelivered}, []any{"1", 4, true})
	check(got.Ack(true))
	check(ch.Close())
	t.saw("all acked", t.ready(queue), 0)
	t.fails("missing queue", func(ch *amqp.Channel) error { _, _, err := ch.Get(t.n("missing"), true); return err }, notFound(t.n("missing")))
}

const replyTo = "amq.rabbitmq.reply-to"

func rpcDirectReplyTo(t *T) {
	client, server := t.ch(), t.newConn()
	serverCh := must(server.Channel())
	queue := must(serverCh.QueueDeclare(t.n("q"), false, true, true, false, nil)).Name
	requests := must(serverCh.Consume(queue, "", true, false, false, false, nil))
	replies := must(client.Consume(replyTo, "", true, false, false, false, nil))
	returns := serverCh.NotifyReturn(make(chan amqp.Return, 8))
	for index := 0; index < 3; index++ {
		check(client.Publish("", queue, false, false, amqp.Publishing{ReplyTo: replyTo, CorrelationId: fmt.Sprint("c", index), Body: []byte(fmt.Sprint(index))}))
		request := next(requests)
		t.saw("the request's reply_to is rewritten", []any{strings.HasPrefix(request.ReplyTo, replyTo+"."), request.CorrelationId}, []any{true, fmt.Sprint("c", index)})
		must(serverCh.QueueDeclarePassive(request.ReplyTo, false, false, false, false, nil))
		check(serverCh.Publish("", request.ReplyTo, true, false, amqp.Publishing{CorrelationId: request.CorrelationId, Body: append([]byte("re:"), request.Body...)}))
		reply := next(replies)
		t.saw("the reply", []any{string(reply.Body), reply.CorrelationId, reply.Exchange, reply.Redelivered, reply.RoutingKey == request.ReplyTo}, []any{"re:" + fmt.Sprint(index), fmt.Sprint("c", index), "", false, true})
	}
	check(client.Publish("", queue, false, false, amqp.Publishing{ReplyTo: replyTo}))
	request := next(requests)
	check(client.Close())
	t.failsOn(server, "passive declare when the client is gone", func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(request.ReplyTo, false, false, false, false, nil)
		return err
	}, fault(404, "NOT_FOUND - no queue 'amq.rabbitmq.reply-to.<gen>' in vhost '/'", "channel"))
	t.saw("mandatory replies to a living client: returns", len(returns), 0)
	check(serverCh.Publish("", request.ReplyTo, true, false, text("too late")))
	check(serverCh.Confirm(false))
	eventually("it is returned", func() bool {
		select {
		case back := <-returns:
			return string(back.Body) == "too late" && back.ReplyCode == 312
		default:
			return false
		}
	})
	t.saw("a mandatory reply when the client is gone is returned", true, true)
}

func rpcErrors(t *T) {
	t.fails("consume with acks", func(ch *amqp.Channel) error {
		_, err := ch.Consume(replyTo, "", false, false, false, false, nil)
		return err
	}, fault(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge", "channel"))
	t.fails("consume twice", func(ch *amqp.Channel) error {
		must(ch.Consume(replyTo, "a", true, false, false, false, nil))
		_, err := ch.Consume(replyTo, "b", true, false, false, false, nil)
		return err
	}, fault(406, "PRECONDITION_FAILED - reply consumer already set", "channel"))
	t.fails("publish without a reply consumer", func(ch *amqp.Channel) error {
		return ch.Publish("", t.n("q"), false, false, amqp.Publishing{ReplyTo: replyTo})
	}, fault(406, "PRECONDITION_FAILED - fast reply consumer does not exist", "channel"))
	ch := t.confirmCh()
	t.saw("a made-up reply name drops", sure(ch, "", replyTo+".made-up", text("x")), true)
	must(ch.Consume(replyTo, "a", true, false, false, false, nil))
	check(ch.Cancel("a", false))
	must(ch.Consume(replyTo, "b", true, false, false, false, nil))
	t.saw("again after a cancel", ch.IsClosed(), false)
}

func rpcQueue(t *T) {
	client, server := t.ch(), t.ch()
	queue := must(server.QueueDeclare(t.n("q"), false, true, true, false, nil)).Name
	requests := must(server.Consume(queue, "", false, false, false, false, nil))
	answers := must(client.QueueDeclare("", false, true, true, false, nil)).Name
	replies := must(client.Consume(answers, "", true, true, false, false, nil))
	for index := 0; index < 20; index++ {
		check(client.Publish("", queue, false, false, amqp.Publishing{ReplyTo: answers, CorrelationId: fmt.Sprint(index)}))
		request := next(requests)
		publish(server, "", request.ReplyTo, request.CorrelationId)
		check(request.Ack(false))
		if got := string(next(replies).Body); got != fmt.Sprint(index) {
			panic("reply " + got)
		}
	}
	t.saw("twenty calls over an exclusive queue", true, true)
}

// Publisher, exchange, two queues, consumers that ack now and then reject: the sums must agree.
func flowRoundTrip(t *T) {
	const count = 4000
	ch := t.confirmCh()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "topic", false, false, false, false, nil))
	q := t.queues(ch, "even", "all")
	check(ch.QueueBind(q["even"], "n.even", exchange, false, nil))
	check(ch.QueueBind(q["all"], "n.*", exchange, false, nil))
	results := make(chan int, 2)
	for _, name := range []string{"even", "all"} {
		reader := t.ch()
		check(reader.Qos(64, 0, false))
		deliveries := must(reader.Consume(q[name], "", false, false, false, false, nil))
		want := map[string]int{"even": count / 2, "all": count}[name]
		go func() {
			finished, rejected := 0, map[string]bool{}
			for delivery := range deliveries {
				body := string(delivery.Body)
				if strings.HasSuffix(body, "7") && !rejected[body] {
					rejected[body] = true
					_ = delivery.Nack(false, true)
					continue
				}
				_ = delivery.Ack(false)
				if finished++; finished == want {
					results <- finished
					return
				}
			}
			results <- -finished
		}()
	}
	for index := 0; index < count; index++ {
		key := "n.odd"
		if index%2 == 0 {
			key = "n.even"
		}
		publish(ch, exchange, key, fmt.Sprint(index))
	}
	sums := []int{nextOf("sum", results), nextOf("sum", results)}
	t.saw("finished by both readers", sums[0]+sums[1], count+count/2)
	eventually("both queues are empty", func() bool { return t.ready(q["even"]) == 0 && t.ready(q["all"]) == 0 })
	t.cleanUp(nil, []string{exchange})
}
