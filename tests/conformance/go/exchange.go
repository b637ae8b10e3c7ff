package main

import (
	"sort"

	amqp "github.com/rabbitmq/amqp091-go"
)

var exchangeScenarios = []scenario{
	{name: "exchange.predeclared", run: exchangePredeclared},
	{name: "exchange.direct", run: exchangeDirect},
	{name: "exchange.fanout", run: exchangeFanout},
	{name: "exchange.topic", run: exchangeTopic},
	{name: "exchange.headers", run: exchangeHeaders},
	{name: "exchange.default", run: exchangeDefault},
	{name: "exchange.to-exchange", run: exchangeToExchange},
	{name: "exchange.alternate", run: exchangeAlternate},
	{name: "exchange.auto-delete", run: exchangeAutoDelete},
	{name: "exchange.internal", run: exchangeInternal},
	{name: "exchange.declare", run: exchangeDeclare},
	{name: "exchange.delete", run: exchangeDelete},
	{name: "exchange.bind", run: exchangeBind},
}

// queues declares exclusive queues on the channel, one for each name.
func (t *T) queues(ch *amqp.Channel, names ...string) map[string]string {
	made := map[string]string{}
	for _, name := range names {
		made[name] = must(ch.QueueDeclare(t.n(name), false, false, true, false, nil)).Name
	}
	return made
}

func exchangePredeclared(t *T) {
	for _, name := range []string{"", "amq.direct", "amq.fanout", "amq.topic", "amq.headers", "amq.match"} {
		if name == "" {
			continue
		}
		check(t.ch().ExchangeDeclarePassive(name, "direct", true, false, false, false, nil))
		t.saw(name+" exists, a passive declare does not look at the type", true, true)
	}
	check(t.ch().ExchangeDeclare("amq.direct", "direct", true, false, false, false, nil))
	t.saw("equal redeclare of amq.direct", true, true)
	t.fails("new reserved name", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare("amq.go-new", "direct", true, false, false, false, nil)
	}, fault(403, "ACCESS_REFUSED - exchange name 'amq.go-new' contains reserved prefix 'amq.*'", "channel"))
	t.fails("delete of a predeclared one", func(ch *amqp.Channel) error { return ch.ExchangeDelete("amq.direct", false, false) },
		fault(403, "ACCESS_REFUSED - deletion of system exchange 'amq.direct' in vhost '/' not allowed", "channel"))
	t.fails("publish to amq.rabbitmq.trace", func(ch *amqp.Channel) error {
		return ch.Publish("amq.rabbitmq.trace", "k", false, false, text("x"))
	}, fault(403, "ACCESS_REFUSED - cannot publish to internal exchange 'amq.rabbitmq.trace' in vhost '/'", "channel"))
}

func exchangeDirect(t *T) {
	ch := t.confirmCh()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "direct", false, false, false, false, nil))
	q := t.queues(ch, "a", "b")
	check(ch.QueueBind(q["a"], "one", exchange, false, nil))
	check(ch.QueueBind(q["a"], "two", exchange, false, nil))
	check(ch.QueueBind(q["b"], "two", exchange, false, nil))
	check(ch.QueueBind(q["b"], "two", exchange, false, nil))
	for _, key := range []string{"one", "two", "three", "", "on", "one.more", "*", "#"} {
		sure(ch, exchange, key, text(key))
	}
	t.saw("a", drain(ch, q["a"]), []string{"one", "two"})
	t.saw("b, bound twice the same way", drain(ch, q["b"]), []string{"two"})
	check(ch.QueueUnbind(q["a"], "one", exchange, nil))
	sure(ch, exchange, "one", text("gone"))
	sure(ch, exchange, "two", text("still"))
	t.saw("a after unbinding one key", drain(ch, q["a"]), []string{"still"})
	t.cleanUp(nil, []string{exchange})
}

func exchangeFanout(t *T) {
	ch := t.confirmCh()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
	q := t.queues(ch, "a", "b", "c")
	check(ch.QueueBind(q["a"], "", exchange, false, nil))
	check(ch.QueueBind(q["b"], "ignored", exchange, false, nil))
	check(ch.QueueBind(q["b"], "also ignored", exchange, false, nil))
	for _, key := range []string{"", "any", "ignored"} {
		sure(ch, exchange, key, text("k:"+key))
	}
	t.saw("a", drain(ch, q["a"]), []string{"k:", "k:any", "k:ignored"})
	t.saw("b, bound twice", drain(ch, q["b"]), []string{"k:", "k:any", "k:ignored"})
	t.saw("c, not bound", drain(ch, q["c"]), []string{})
	t.cleanUp(nil, []string{exchange})
}

func exchangeTopic(t *T) {
	ch := t.confirmCh()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "topic", false, false, false, false, nil))
	keys := []string{"", "a", "b", "a.b", "a.b.c", "a.c", "b.a", "a..c", ".", "a.", ".a", "a.b.c.d", "*", "#", "a.*", "A"}
	table := []struct {
		pattern string
		want    []string
	}{
		{"#", keys},
		{"*", []string{"a", "b", "*", "#", "A", ""}},
		{"a", []string{"a"}},
		{"a.b", []string{"a.b"}},
		{"a.*", []string{"a.b", "a.c", "a.", "a.*"}},
		{"*.a", []string{"b.a", ".a"}},
		{"a.#", []string{"a", "a.b", "a.b.c", "a.c", "a..c", "a.", "a.b.c.d", "a.*"}},
		{"#.c", []string{"a.b.c", "a.c", "a..c"}},
		{"a.*.c", []string{"a.b.c", "a..c"}},
		{"a.#.c", []string{"a.b.c", "a.c", "a..c"}},
		{"#.b.#", []string{"b", "a.b", "a.b.c", "b.a", "a.b.c.d"}},
		{"*.*", []string{"a.b", "a.c", "b.a", ".", "a.", ".a", "a.*"}},
		{"*.#.*", []string{"a.b", "a.b.c", "a.c", "b.a", "a..c", ".", "a.", ".a", "a.b.c.d", "a.*"}},
		{"", []string{""}},
	}
	for _, row := range table {
		queue := must(ch.QueueDeclare("", false, true, true, false, nil)).Name
		check(ch.QueueBind(queue, row.pattern, exchange, false, nil))
		for _, key := range keys {
			sure(ch, exchange, key, text(key))
		}
		got := drain(ch, queue)
		must(ch.QueueDelete(queue, false, false, false))
		// RabbitMQ splits an empty key into no words at all.
		want := []string{}
		for _, key := range keys {
			for _, wanted := range row.want {
				if key == wanted && !(row.pattern == "*" && key == "") {
					want = append(want, key)
				}
			}
		}
		t.saw("pattern "+row.pattern, got, want)
	}
	q := t.queues(ch, "twice")
	check(ch.QueueBind(q["twice"], "a.#", exchange, false, nil))
	check(ch.QueueBind(q["twice"], "*.b", exchange, false, nil))
	sure(ch, exchange, "a.b", text("once"))
	t.saw("overlapping bindings, one copy", drain(ch, q["twice"]), []string{"once"})
	check(ch.QueueUnbind(q["twice"], "a.#", exchange, nil))
	sure(ch, exchange, "a.b", text("still"))
	sure(ch, exchange, "a.c", text("gone"))
	t.saw("after unbinding one", drain(ch, q["twice"]), []string{"still"})
	t.cleanUp(nil, []string{exchange})
}

func exchangeHeaders(t *T) {
	ch := t.confirmCh()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "headers", false, false, false, false, nil))
	messages := []struct {
		name    string
		headers amqp.Table
	}{
		{"none", nil},
		{"a1", amqp.Table{"a": int32(1)}},
		{"a1-wide", amqp.Table{"a": int64(1)}},
		{"a-text", amqp.Table{"a": "1"}},
		{"a-true", amqp.Table{"a": true}},
		{"a1b2", amqp.Table{"a": int32(1), "b": "2"}},
		{"b2", amqp.Table{"b": "2"}},
		{"x-a", amqp.Table{"x-a": "y"}},
		{"more", amqp.Table{"a": int32(1), "b": "2", "c": "3", "x-a": "y"}},
	}
	table := []struct {
		name string
		args amqp.Table
		want []string
	}{
		{"all a b", amqp.Table{"x-match": "all", "a": int32(1), "b": "2"}, []string{"a1b2", "more"}},
		{"no x-match is all", amqp.Table{"a": int32(1), "b": "2"}, []string{"a1b2", "more"}},
		{"any a b", amqp.Table{"x-match": "any", "a": int32(1), "b": "2"}, []string{"a1", "a1-wide", "a1b2", "b2", "more"}},
		{"void means exists", amqp.Table{"x-match": "all", "a": nil}, []string{"a1", "a1-wide", "a-text", "a-true", "a1b2", "more"}},
		{"x- keys ignored", amqp.Table{"x-match": "all", "x-a": "no", "b": "2"}, []string{"a1b2", "b2", "more"}},
		{"all-with-x", amqp.Table{"x-match": "all-with-x", "x-a": "y", "b": "2"}, []string{"more"}},
		{"any-with-x", amqp.Table{"x-match": "any-with-x", "x-a": "y", "b": "no"}, []string{"x-a", "more"}},
		{"all without anything", amqp.Table{"x-match": "all"}, []string{"none", "a1", "a1-wide", "a-text", "a-true", "a1b2", "b2", "x-a", "more"}},
		{"any without anything", amqp.Table{"x-match": "any"}, []string{}},
		{"nothing at all", nil, []string{"none", "a1", "a1-wide", "a-text", "a-true", "a1b2", "b2", "x-a", "more"}},
	}
	for _, row := range table {
		queue := must(ch.QueueDeclare("", false, true, true, false, nil)).Name
		check(ch.QueueBind(queue, "", exchange, false, row.args))
		for _, message := range messages {
			sure(ch, exchange, "", amqp.Publishing{Headers: message.headers, Body: []byte(message.name)})
		}
		t.saw(row.name, drain(ch, queue), row.want)
		must(ch.QueueDelete(queue, false, false, false))
	}
	queue := must(ch.QueueDeclare("", false, true, true, false, nil)).Name
	t.fails("bad x-match", func(ch *amqp.Channel) error {
		return ch.QueueBind(queue, "", exchange, false, amqp.Table{"x-match": "some"})
	}, fault(406, "PRECONDITION_FAILED - Invalid x-match field value <<\"some\">>; expected all, any, all-with-x, or any-with-x", "channel"))
	t.fails("x-match of a wrong type", func(ch *amqp.Channel) error {
		return ch.QueueBind(queue, "", exchange, false, amqp.Table{"x-match": int32(1)})
	})
	t.cleanUp(nil, []string{exchange})
}

func exchangeDefault(t *T) {
	ch := t.confirmCh()
	queue := must(ch.QueueDeclare(t.n("q"), false, true, true, false, nil)).Name
	sure(ch, "", queue, text("by its name"))
	t.saw("every queue is bound by its name", drain(ch, queue), []string{"by its name"})
	refused := fault(403, "ACCESS_REFUSED - operation not permitted on the default exchange", "channel")
	t.fails("bind", func(ch *amqp.Channel) error { return ch.QueueBind(queue, "k", "", false, nil) }, refused)
	t.fails("unbind", func(ch *amqp.Channel) error { return ch.QueueUnbind(queue, queue, "", nil) }, refused)
	t.fails("declare", func(ch *amqp.Channel) error { return ch.ExchangeDeclare("", "direct", true, false, false, false, nil) }, refused)
	t.fails("delete", func(ch *amqp.Channel) error { return ch.ExchangeDelete("", false, false) }, refused)
	t.fails("exchange bind", func(ch *amqp.Channel) error { return ch.ExchangeBind("amq.fanout", "k", "", false, nil) }, refused)
}

func exchangeToExchange(t *T) {
	ch := t.confirmCh()
	first, second, third := t.n("first"), t.n("second"), t.n("third")
	check(ch.ExchangeDeclare(first, "topic", false, false, false, false, nil))
	check(ch.ExchangeDeclare(second, "fanout", false, false, false, false, nil))
	check(ch.ExchangeDeclare(third, "direct", false, false, false, false, nil))
	q := t.queues(ch, "a", "b")
	check(ch.ExchangeBind(second, "to.#", first, false, nil))
	check(ch.ExchangeBind(third, "to.third", first, false, nil))
	check(ch.ExchangeBind(third, "", second, false, nil))
	// A cycle must not go round for ever.
	check(ch.ExchangeBind(first, "", second, false, nil))
	check(ch.QueueBind(q["a"], "", second, false, nil))
	check(ch.QueueBind(q["b"], "to.third", third, false, nil))
	check(ch.QueueBind(q["b"], "to.other", third, false, nil))
	for _, key := range []string{"to.third", "to.other", "elsewhere"} {
		sure(ch, first, key, text(key))
	}
	t.saw("a behind one exchange", drain(ch, q["a"]), []string{"to.third", "to.other"})
	t.saw("b behind two, by two ways, one copy", drain(ch, q["b"]), []string{"to.third", "to.other"})
	check(ch.ExchangeUnbind(second, "to.#", first, false, nil))
	sure(ch, first, "to.third", text("direct way"))
	t.saw("after unbinding: a", drain(ch, q["a"]), []string{})
	t.saw("after unbinding: b", drain(ch, q["b"]), []string{"direct way"})
	t.fails("bind to a missing exchange", func(ch *amqp.Channel) error { return ch.ExchangeBind(t.n("missing"), "k", first, false, nil) },
		fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel"))
	t.fails("bind from a missing exchange", func(ch *amqp.Channel) error { return ch.ExchangeBind(first, "k", t.n("missing"), false, nil) },
		fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel"))
	check(t.ch().ExchangeUnbind(first, "absent", third, false, nil))
	t.saw("unbind of an absent binding", true, true)
	t.cleanUp(nil, []string{first, second, third})
}

func exchangeAlternate(t *T) {
	ch := t.confirmCh()
	returns := ch.NotifyReturn(make(chan amqp.Return, 4))
	main, other, last := t.n("main"), t.n("other"), t.n("last")
	check(ch.ExchangeDeclare(last, "direct", false, false, false, false, nil))
	check(ch.ExchangeDeclare(other, "direct", false, false, false, false, amqp.Table{"alternate-exchange": last}))
	check(ch.ExchangeDeclare(main, "direct", false, false, false, false, amqp.Table{"alternate-exchange": other}))
	q := t.queues(ch, "main-q", "other-q", "last-q")
	check(ch.QueueBind(q["main-q"], "m", main, false, nil))
	check(ch.QueueBind(q["other-q"], "m", other, false, nil))
	check(ch.QueueBind(q["other-q"], "o", other, false, nil))
	check(ch.QueueBind(q["last-q"], "l", last, false, nil))
	for _, key := range []string{"m", "o", "l", "n"} {
		must(ch.PublishWithDeferredConfirm(main, key, true, false, text(key))).Wait()
	}
	t.saw("matched: not in the alternate", drain(ch, q["main-q"]), []string{"m"})
	t.saw("first alternate", drain(ch, q["other-q"]), []string{"o"})
	t.saw("alternate of the alternate", drain(ch, q["last-q"]), []string{"l"})
	t.saw("only what no one wanted is returned", []any{len(returns), string((<-returns).Body)}, []any{1, "n"})
	loop := t.n("loop")
	check(ch.ExchangeDeclare(loop, "direct", false, false, false, false, amqp.Table{"alternate-exchange": loop}))
	must(ch.PublishWithDeferredConfirm(loop, "k", true, false, text("loop"))).Wait()
	t.saw("its own alternate: returned once", string(nextOf("return", returns).Body), "loop")
	t.fails("redeclare without it", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(main, "direct", false, false, false, false, nil)
	}, fault(406, "PRECONDITION_FAILED - inequivalent arg 'alternate-exchange' for exchange '"+main+"' in vhost '/': received none but current is the value '"+other+"' of type 'longstr'", "channel"))
	t.cleanUp(nil, []string{main, other, last, loop})
}

func exchangeAutoDelete(t *T) {
	ch := t.ch()
	exchange, upstream := t.n("x"), t.n("upstream")
	check(ch.ExchangeDeclare(exchange, "fanout", false, true, false, false, nil))
	check(ch.ExchangeDeclare(upstream, "fanout", false, true, false, false, nil))
	check(ch.ExchangeBind(exchange, "", upstream, false, nil))
	q := t.queues(ch, "a", "b")
	check(ch.QueueBind(q["a"], "", exchange, false, nil))
	check(ch.QueueBind(q["b"], "", exchange, false, nil))
	check(ch.QueueUnbind(q["a"], "", exchange, nil))
	check(t.ch().ExchangeDeclarePassive(exchange, "fanout", false, true, false, false, nil))
	t.saw("one binding left: there", true, true)
	must(ch.QueueDelete(q["b"], false, false, false))
	for _, name := range []string{exchange, upstream} {
		t.fails("the last one gone: "+name, func(ch *amqp.Channel) error {
			return ch.ExchangeDeclarePassive(name, "fanout", false, true, false, false, nil)
		}, fault(404, "NOT_FOUND - no exchange '"+name+"' in vhost '/'", "channel"))
	}
}

func exchangeInternal(t *T) {
	ch := t.confirmCh()
	inner, outer := t.n("inner"), t.n("outer")
	check(ch.ExchangeDeclare(inner, "fanout", false, false, true, false, nil))
	check(ch.ExchangeDeclare(outer, "fanout", false, false, false, false, nil))
	check(ch.ExchangeBind(inner, "", outer, false, nil))
	q := t.queues(ch, "q")
	check(ch.QueueBind(q["q"], "", inner, false, nil))
	sure(ch, outer, "", text("through"))
	t.saw("through another exchange", drain(ch, q["q"]), []string{"through"})
	t.fails("publish", func(ch *amqp.Channel) error { return ch.Publish(inner, "", false, false, text("x")) },
		fault(403, "ACCESS_REFUSED - cannot publish to internal exchange '"+inner+"' in vhost '/'", "channel"))
	t.fails("redeclare not internal", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(inner, "fanout", false, false, false, false, nil)
	}, fault(406, "PRECONDITION_FAILED - inequivalent arg 'internal' for exchange '"+inner+"' in vhost '/': received 'false' but current is 'true'", "channel"))
	t.cleanUp(nil, []string{inner, outer})
}

func exchangeDeclare(t *T) {
	ch := t.ch()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "direct", true, false, false, false, nil))
	check(ch.ExchangeDeclare(exchange, "direct", true, false, false, false, amqp.Table{"unknown-arg": "ignored"}))
	t.saw("equal redeclare, unknown arguments ignored", true, true)
	mismatch := func(arg, received, current string) map[string]any {
		return fault(406, "PRECONDITION_FAILED - inequivalent arg '"+arg+"' for exchange '"+exchange+"' in vhost '/': received '"+received+"' but current is '"+current+"'", "channel")
	}
	t.fails("other type", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(exchange, "fanout", true, false, false, false, nil)
	}, mismatch("type", "fanout", "direct"))
	t.fails("not durable", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(exchange, "direct", false, false, false, false, nil)
	}, mismatch("durable", "false", "true"))
	t.fails("auto-delete", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(exchange, "direct", true, true, false, false, nil)
	}, mismatch("auto_delete", "true", "false"))
	t.fails("unknown type", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(t.n("new"), "x-absent", true, false, false, false, nil)
	}, fault(503, "COMMAND_INVALID - unknown exchange type 'x-absent'", "connection"))
	t.fails("passive, missing", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclarePassive(t.n("missing"), "direct", true, false, false, false, nil)
	}, fault(404, "NOT_FOUND - no exchange '"+t.n("missing")+"' in vhost '/'", "channel"))
	t.fails("bad alternate-exchange", func(ch *amqp.Channel) error {
		return ch.ExchangeDeclare(t.n("new"), "direct", false, false, false, false, amqp.Table{"alternate-exchange": int32(1)})
	})
	ch = t.ch()
	check(ch.ExchangeDeclare(t.n("no-wait"), "direct", false, false, false, true, nil))
	check(ch.ExchangeDeclarePassive(t.n("no-wait"), "direct", false, false, false, false, nil))
	t.saw("declared without waiting", true, true)
	check(ch.ExchangeDeclare(t.n("line")+"\r\n", "direct", false, false, false, false, nil))
	check(ch.ExchangeDeclarePassive(t.n("line"), "direct", false, false, false, false, nil))
	t.saw("line ends are cut from names", true, true)
	t.cleanUp(nil, []string{exchange, t.n("no-wait"), t.n("line")})
}

func exchangeDelete(t *T) {
	ch := t.ch()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "fanout", false, false, false, false, nil))
	q := t.queues(ch, "q")
	check(ch.QueueBind(q["q"], "", exchange, false, nil))
	t.fails("if-unused while bound", func(ch *amqp.Channel) error { return ch.ExchangeDelete(exchange, true, false) },
		fault(406, "PRECONDITION_FAILED - exchange '"+exchange+"' in vhost '/' in use", "channel"))
	check(t.ch().ExchangeDelete(exchange, false, false))
	t.saw("deleted while bound", true, true)
	check(t.ch().ExchangeDelete(exchange, true, false))
	t.saw("delete of an absent one", true, true)
	t.fails("publish after the delete", func(ch *amqp.Channel) error { return ch.Publish(exchange, "", false, false, text("x")) },
		fault(404, "NOT_FOUND - no exchange '"+exchange+"' in vhost '/'", "channel"))
}

func exchangeBind(t *T) {
	ch := t.ch()
	exchange := t.n("x")
	check(ch.ExchangeDeclare(exchange, "direct", false, false, false, false, nil))
	q := t.queues(ch, "q")
	missing := t.n("missing")
	t.fails("missing queue", func(ch *amqp.Channel) error { return ch.QueueBind(missing, "k", exchange, false, nil) },
		fault(404, "NOT_FOUND - no queue '"+missing+"' in vhost '/'", "channel"))
	t.fails("missing exchange", func(ch *amqp.Channel) error { return ch.QueueBind(q["q"], "k", missing, false, nil) },
		fault(404, "NOT_FOUND - no exchange '"+missing+"' in vhost '/'", "channel"))
	t.fails("no queue declared, empty name", func(ch *amqp.Channel) error { return ch.QueueBind("", "k", exchange, false, nil) },
		fault(404, "NOT_FOUND - no previously declared queue", "channel"))
	ch = t.confirmCh()
	last := must(ch.QueueDeclare("", false, true, true, false, nil)).Name
	check(ch.QueueBind("", "", exchange, false, nil))
	sure(ch, exchange, last, text("under its own name"))
	sure(ch, exchange, "", text("under the empty key"))
	t.saw("empty queue and key: the last declared queue, its name", drain(ch, last), []string{"under its own name"})
	for what, unbind := range map[string][]string{"binding": {last, exchange}, "queue": {missing, exchange}, "exchange": {last, missing}} {
		check(ch.QueueUnbind(unbind[0], "absent", unbind[1], nil))
		_ = what
	}
	t.saw("unbind of an absent binding, queue, exchange", true, true)
	// Bindings that differ in arguments only are two.
	check(ch.QueueBind(last, "args", exchange, false, amqp.Table{"n": int32(1)}))
	check(ch.QueueBind(last, "args", exchange, false, amqp.Table{"n": int32(2)}))
	check(ch.QueueUnbind(last, "args", exchange, amqp.Table{"n": int32(1)}))
	sure(ch, exchange, "args", text("one binding left"))
	check(ch.QueueUnbind(last, "args", exchange, amqp.Table{"n": int32(2)}))
	sure(ch, exchange, "args", text("no binding left"))
	t.saw("bindings differ by arguments", drain(ch, last), []string{"one binding left"})
	t.cleanUp(nil, []string{exchange})
}

func sorted(values []string) []string {
	sort.Strings(values)
	return values
}
