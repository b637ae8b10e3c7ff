import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.BuiltinExchangeType;
import com.rabbitmq.client.Channel;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class ExchangeCases {
    static final List<Main.Scenario> ALL = List.of(
        Main.Scenario.of("exchange.direct", ExchangeCases::direct),
        Main.Scenario.of("exchange.fanout", ExchangeCases::fanout),
        Main.Scenario.of("exchange.topic", ExchangeCases::topic),
        Main.Scenario.of("exchange.headers", ExchangeCases::headers),
        Main.Scenario.of("exchange.to-exchange", ExchangeCases::toExchange),
        Main.Scenario.of("exchange.alternate", ExchangeCases::alternate),
        Main.Scenario.of("exchange.no-wait", ExchangeCases::noWait),
        Main.Scenario.of("exchange.errors", ExchangeCases::errors));

    private ExchangeCases() {}

    static void direct(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String exchange = t.n("x");
        channel.exchangeDeclare(exchange, BuiltinExchangeType.DIRECT);
        String a = t.queue(channel, "a");
        String b = t.queue(channel, "b");
        channel.queueBind(a, exchange, "one");
        channel.queueBind(a, exchange, "two");
        channel.queueBind(b, exchange, "two");
        for (String key : List.of("one", "two", "three", "", "two ")) Case.sure(channel, exchange, key, key);
        t.saw("a", Case.drain(channel, a), Case.list("one", "two"));
        t.saw("b", Case.drain(channel, b), Case.list("two"));
        channel.queueUnbind(b, exchange, "two");
        Case.sure(channel, exchange, "two", "again");
        t.saw("b after unbinding", Case.drain(channel, b), Case.list());
        t.cleanUp(Case.list(), Case.list(exchange));
    }

    static void fanout(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String exchange = t.n("x");
        channel.exchangeDeclare(exchange, BuiltinExchangeType.FANOUT, false, true, null);
        String[] queues = new String[10];
        for (int index = 0; index < queues.length; index++) {
            queues[index] = channel.queueDeclare().getQueue();
            channel.queueBind(queues[index], exchange, "");
        }
        Case.sure(channel, exchange, "any", "x");
        int got = 0;
        for (String queue : queues) got += Case.drain(channel, queue).size();
        t.saw("ten queues", got, 10);
        for (String queue : queues) channel.queueDelete(queue);
        t.fails("an auto-delete exchange goes with its last binding", c -> c.exchangeDeclarePassive(exchange), Case.fault(404, "NOT_FOUND - no exchange '" + exchange + "' in vhost '/'"));
    }

    static void topic(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String exchange = t.n("x");
        channel.exchangeDeclare(exchange, "topic");
        List<String> keys = List.of("quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox", "lazy.brown.fox", "lazy", "orange", "lazy.orange.male.rabbit", "");
        Map<String, List<Object>> table = new LinkedHashMap<>();
        table.put("*.orange.*", Case.list("quick.orange.rabbit", "lazy.orange.elephant", "quick.orange.fox"));
        table.put("*.*.rabbit", Case.list("quick.orange.rabbit"));
        table.put("lazy.#", Case.list("lazy.orange.elephant", "lazy.brown.fox", "lazy", "lazy.orange.male.rabbit"));
        table.put("#.rabbit", Case.list("quick.orange.rabbit", "lazy.orange.male.rabbit"));
        table.put("*", Case.list("lazy", "orange"));
        table.put("#", List.copyOf(keys));
        for (Map.Entry<String, List<Object>> row : table.entrySet()) {
            String queue = channel.queueDeclare().getQueue();
            channel.queueBind(queue, exchange, row.getKey());
            for (String key : keys) Case.publish(channel, exchange, key, key);
            channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
            t.saw("pattern " + row.getKey(), Case.drain(channel, queue), row.getValue());
            channel.queueDelete(queue);
        }
        t.cleanUp(Case.list(), Case.list(exchange));
    }

    static void headers(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String exchange = t.n("x");
        channel.exchangeDeclare(exchange, BuiltinExchangeType.HEADERS);
        Map<String, Map<String, Object>> messages = new LinkedHashMap<>();
        messages.put("none", null);
        messages.put("int", Case.map("a", 1));
        messages.put("long", Case.map("a", 1L));
        messages.put("short", Case.map("a", (short) 1));
        messages.put("double", Case.map("a", 1.0));
        messages.put("text", Case.map("a", "1"));
        messages.put("true", Case.map("a", true));
        messages.put("both", Case.map("a", 1, "b", "x"));
        Object[][] table = {
            {"all", Case.map("x-match", "all", "a", 1, "b", "x"), Case.list("both")},
            {"any", Case.map("x-match", "any", "a", 1, "b", "x"), Case.list("int", "long", "short", "double", "both")},
            {"exists", Case.map("a", null), Case.list("int", "long", "short", "double", "text", "true", "both")},
            {"text only", Case.map("a", "1"), Case.list("text")},
            {"truth only", Case.map("a", true), Case.list("true")},
        };
        for (Object[] row : table) {
            String queue = channel.queueDeclare().getQueue();
            @SuppressWarnings("unchecked")
            Map<String, Object> arguments = (Map<String, Object>) row[1];
            channel.queueBind(queue, exchange, "", arguments);
            for (Map.Entry<String, Map<String, Object>> message : messages.entrySet()) {
                Case.sure(channel, exchange, "", new AMQP.BasicProperties.Builder().headers(message.getValue()).build(), Case.bytes(message.getKey()));
            }
            t.saw((String) row[0], Case.drain(channel, queue), row[2]);
            channel.queueDelete(queue);
        }
        t.cleanUp(Case.list(), Case.list(exchange));
    }

    static void toExchange(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String source = t.n("source");
        String destination = t.n("destination");
        channel.exchangeDeclare(source, "topic");
        channel.exchangeDeclare(destination, "fanout", false, false, true, null);
        channel.exchangeBind(destination, source, "in.#");
        String queue = t.queue(channel, "q");
        channel.queueBind(queue, destination, "");
        Case.sure(channel, source, "in.side", "through");
        Case.sure(channel, source, "out", "not through");
        t.saw("through both", Case.drain(channel, queue), Case.list("through"));
        t.fails("the inner one is internal", c -> Case.publish(c, destination, "", "x"), Case.fault(403, "ACCESS_REFUSED - cannot publish to internal exchange '" + destination + "' in vhost '/'"));
        channel.exchangeUnbind(destination, source, "in.#");
        Case.sure(channel, source, "in.side", "no longer");
        t.saw("after unbinding", Case.drain(channel, queue), Case.list());
        t.cleanUp(Case.list(), Case.list(source, destination));
    }

    static void alternate(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        channel.exchangeDeclare(t.n("rest"), "fanout");
        channel.exchangeDeclare(t.n("main"), "direct", false, false, Case.map("alternate-exchange", t.n("rest")));
        String queue = t.queue(channel, "q");
        channel.queueBind(queue, t.n("rest"), "");
        Case.sure(channel, t.n("main"), "k", "x");
        t.saw("what no one wanted", Case.drain(channel, queue), Case.list("x"));
        t.cleanUp(Case.list(), Case.list(t.n("main"), t.n("rest")));
    }

    static void noWait(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        channel.exchangeDeclareNoWait(t.n("x"), "fanout", false, false, false, null);
        channel.queueDeclareNoWait(t.n("q"), false, true, false, null);
        channel.queueBindNoWait(t.n("q"), t.n("x"), "", null);
        Case.sure(channel, t.n("x"), "", "x");
        t.saw("declared and bound without waiting", Case.drain(channel, t.n("q")), Case.list("x"));
        channel.exchangeDeclareNoWait(t.n("y"), "fanout", false, false, false, null);
        channel.exchangeBindNoWait(t.n("x"), t.n("y"), "", null);
        Case.sure(channel, t.n("y"), "", "y");
        channel.exchangeUnbindNoWait(t.n("x"), t.n("y"), "", null);
        Case.sure(channel, t.n("y"), "", "y");
        t.saw("bound and unbound without waiting", Case.drain(channel, t.n("q")), Case.list("y"));
        channel.queueDeleteNoWait(t.n("q"), false, false);
        channel.exchangeDeleteNoWait(t.n("x"), false);
        channel.exchangeDeleteNoWait(t.n("y"), false);
        t.fails("deleted without waiting", c -> c.queueDeclarePassive(t.n("q")), t.notFound(t.n("q")));
        t.fails("an error without waiting", c -> c.exchangeDeclareNoWait("amq.java", "fanout", false, false, false, null),
            Case.fault(403, "ACCESS_REFUSED - exchange name 'amq.java' contains reserved prefix 'amq.*'"));
    }

    static void errors(Case t) throws Exception {
        String exchange = t.n("x");
        t.channel().exchangeDeclare(exchange, "direct", true);
        String where = " for exchange '" + exchange + "' in vhost '/': ";
        t.fails("other type", c -> c.exchangeDeclare(exchange, "headers", true), Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'type'" + where + "received 'headers' but current is 'direct'"));
        t.fails("not durable", c -> c.exchangeDeclare(exchange, "direct", false), Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'durable'" + where + "received 'false' but current is 'true'"));
        t.fails("missing", c -> c.exchangeDeclarePassive(t.n("missing")), Case.fault(404, "NOT_FOUND - no exchange '" + t.n("missing") + "' in vhost '/'"));
        t.fails("unknown type", c -> c.exchangeDeclare(t.n("new"), "x-absent"), Case.fault(503, "COMMAND_INVALID - unknown exchange type 'x-absent'", "connection"));
        t.fails("default exchange", c -> c.exchangeDelete(""), Case.fault(403, "ACCESS_REFUSED - operation not permitted on the default exchange"));
        String queue = t.queue(t.channel(), "q");
        t.channel().queueBind(queue, exchange, "");
        t.fails("if unused", c -> c.exchangeDelete(exchange, true), Case.fault(406, "PRECONDITION_FAILED - exchange '" + exchange + "' in vhost '/' in use"));
        t.cleanUp(Case.list(queue), Case.list(exchange));
        t.channel().exchangeDelete(exchange, true);
        t.saw("delete of an absent one", true, true);
    }
}
