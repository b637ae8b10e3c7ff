import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.LongString;
import java.util.Date;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

final class QueueCases {
    static final List<Main.Scenario> ALL = List.of(
        Main.Scenario.of("queue.declare", QueueCases::declare),
        Main.Scenario.of("queue.mismatch", QueueCases::mismatch),
        Main.Scenario.of("queue.mismatch-arguments", QueueCases::mismatchArguments),
        Main.Scenario.of("queue.arguments", QueueCases::arguments),
        Main.Scenario.of("queue.exclusive", QueueCases::exclusive),
        Main.Scenario.of("queue.auto-delete", QueueCases::autoDelete),
        Main.Scenario.of("queue.delete-and-purge", QueueCases::deleteAndPurge),
        Main.Scenario.of("queue.dead-letters", QueueCases::deadLetters),
        Main.Scenario.of("queue.max-length", QueueCases::maxLength),
        Main.Scenario.of("queue.priority", QueueCases::priority),
        Main.Scenario.of("queue.single-active-consumer", QueueCases::singleActiveConsumer),
        Main.Scenario.beside("queue.expires", QueueCases::expires));

    private QueueCases() {}

    private static Object locked(String queue) {
        return Case.fault(405, "RESOURCE_LOCKED - cannot obtain exclusive access to locked queue '" + queue
            + "' in vhost '/'. It could be originally declared on another connection or the exclusive property value does not match that of the original declaration.");
    }

    static void declare(Case t) throws Exception {
        Channel channel = t.channel();
        AMQP.Queue.DeclareOk named = channel.queueDeclare();
        t.saw("named by the server", named.getQueue().matches("amq\\.gen-[A-Za-z0-9_-]{22}"), true);
        AMQP.Queue.DeclareOk made = channel.queueDeclare(t.n("q"), true, false, false, null);
        t.saw("new", Case.list(made.getQueue(), made.getMessageCount(), made.getConsumerCount()), Case.list(t.n("q"), 0, 0));
        t.fill(t.n("q"), 0, 4);
        t.saw("counts", Case.list(channel.messageCount(t.n("q")), channel.consumerCount(t.n("q"))), Case.list(4, 0));
        Inbox.on(t.channel(), t.n("q"), false).take(4);
        t.saw("consumed", Case.list(channel.messageCount(t.n("q")), channel.consumerCount(t.n("q"))), Case.list(0, 1));
        t.fails("missing", c -> c.queueDeclarePassive(t.n("missing")), t.notFound(t.n("missing")));
        t.fails("reserved name", c -> c.queueDeclare("amq.java", false, false, false, null), Case.fault(403, "ACCESS_REFUSED - queue name 'amq.java' contains reserved prefix 'amq.*'"));
        t.fails("bind to a missing exchange", c -> c.queueBind(t.n("q"), t.n("missing"), "k"), Case.fault(404, "NOT_FOUND - no exchange '" + t.n("missing") + "' in vhost '/'"));
        t.fails("bind of a missing queue", c -> c.queueBind(t.n("missing"), "amq.direct", "k"), t.notFound(t.n("missing")));
        t.fails("bind to the default exchange", c -> c.queueBind(t.n("q"), "", "k"), Case.fault(403, "ACCESS_REFUSED - operation not permitted on the default exchange"));
        t.cleanUp(Case.list(t.n("q")), Case.list());
    }

    static void mismatch(Case t) throws Exception {
        String queue = t.n("q");
        t.channel().queueDeclare(queue, true, false, false, null);
        String where = " for queue '" + queue + "' in vhost '/': ";
        t.fails("durable", c -> c.queueDeclare(queue, false, false, false, null), Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'durable'" + where + "received 'false' but current is 'true'"));
        t.fails("auto-delete", c -> c.queueDeclare(queue, true, false, true, null), Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'auto_delete'" + where + "received 'true' but current is 'false'"));
        t.fails("exclusive", c -> c.queueDeclare(queue, true, true, false, null), locked(queue));
        t.cleanUp(Case.list(queue), Case.list());
    }

    static void mismatchArguments(Case t) throws Exception {
        String queue = t.n("q");
        t.channel().queueDeclare(queue, true, false, false, Case.map("x-max-length", 10, "x-message-ttl", 60000));
        t.channel().queueDeclare(queue, true, false, false, Case.map("x-max-length", 10L, "x-message-ttl", 60000L));
        t.saw("other integer widths are equal", true, true);
        String where = " for queue '" + queue + "' in vhost '/': ";
        t.fails("other value", c -> c.queueDeclare(queue, true, false, false, Case.map("x-max-length", 11L, "x-message-ttl", 60000)),
            Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'x-max-length'" + where + "received '11' but current is '10'"));
        t.fails("none", c -> c.queueDeclare(queue, true, false, false, Case.map("x-message-ttl", 60000)),
            Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'x-max-length'" + where + "received none but current is the value '10' of type 'signedint'"));
        t.fails("a text", c -> c.queueDeclare(queue, true, false, false, Case.map("x-message-ttl", 60000, "x-max-length", 10, "x-dead-letter-exchange", "amq.fanout")),
            Case.fault(406, "PRECONDITION_FAILED - inequivalent arg 'x-dead-letter-exchange'" + where + "received the value 'amq.fanout' of type 'longstr' but current is none"));
        t.cleanUp(Case.list(queue), Case.list());
    }

    static void arguments(Case t) throws Exception {
        Object[][] bad = {
            {"x-message-ttl", -1}, {"x-message-ttl", "1"}, {"x-message-ttl", true}, {"x-expires", 0}, {"x-max-length", -1L}, {"x-max-length-bytes", 1.5}, {"x-max-priority", 1000},
            {"x-overflow", "whatever"}, {"x-dead-letter-routing-key", "k"}, {"x-single-active-consumer", "true"}, {"x-queue-type", "heap"},
        };
        for (int index = 0; index < bad.length; index++) {
            Map<String, Object> arguments = Case.map(bad[index][0], bad[index][1]);
            String queue = t.n("bad" + index);
            t.fails(arguments.toString(), c -> c.queueDeclare(queue, false, true, false, arguments));
        }
    }

    static void exclusive(Case t) throws Exception {
        Connection owner = t.newConnection();
        Connection other = t.newConnection();
        String queue = owner.createChannel().queueDeclare(t.n("q"), false, true, false, null).getQueue();
        t.failsOn(other, "declare", c -> c.queueDeclare(queue, false, true, false, null), locked(queue));
        t.failsOn(other, "passive", c -> c.queueDeclarePassive(queue), locked(queue));
        t.failsOn(other, "consume", c -> c.basicConsume(queue, new Inbox(c)), locked(queue));
        t.failsOn(other, "get", c -> c.basicGet(queue, true), locked(queue));
        t.failsOn(other, "purge", c -> c.queuePurge(queue), locked(queue));
        t.failsOn(other, "delete", c -> c.queueDelete(queue), locked(queue));
        owner.close();
        t.failsOn(other, "gone with its connection", c -> c.queueDeclarePassive(queue), t.notFound(queue));
    }

    static void autoDelete(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = channel.queueDeclare(t.n("q"), false, false, true, null).getQueue();
        Inbox inbox = Inbox.on(channel, queue, true);
        channel.basicCancel(inbox.tag);
        t.saw("told", Case.next(inbox.events), "cancel-ok");
        t.fails("gone with its last consumer", c -> c.queueDeclarePassive(queue), t.notFound(queue));
    }

    static void deleteAndPurge(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = channel.queueDeclare(t.n("q"), false, false, false, null).getQueue();
        t.fill(queue, 0, 6);
        GetResponse held = channel.basicGet(queue, false);
        t.fails("if empty", c -> c.queueDelete(queue, false, true), Case.fault(406, "PRECONDITION_FAILED - queue '" + queue + "' in vhost '/' not empty"));
        t.saw("purge", channel.queuePurge(queue).getMessageCount(), 5);
        channel.basicReject(held.getEnvelope().getDeliveryTag(), true);
        t.saw("the unacked one is left", Case.drain(channel, queue), Case.list("0"));
        Inbox.on(channel, queue, true);
        t.fails("if unused", c -> c.queueDelete(queue, true, false), Case.fault(406, "PRECONDITION_FAILED - queue '" + queue + "' in vhost '/' in use"));
        t.saw("delete", t.channel().queueDelete(queue).getMessageCount(), 0);
        t.saw("delete of an absent one", t.channel().queueDelete(queue).getMessageCount(), 0);
    }

    /** Numbers keep their Java class, text and times become readable. */
    static Object tell(Object value) {
        if (value instanceof LongString || value instanceof String) return value.toString();
        if (value instanceof Map<?, ?> map) {
            Map<String, Object> told = new LinkedHashMap<>();
            map.forEach((name, inner) -> told.put((String) name, tell(inner)));
            return told;
        }
        if (value instanceof List<?> list) return list.stream().map(QueueCases::tell).collect(java.util.ArrayList::new, List::add, List::addAll);
        if (value instanceof byte[] bytes) return "bytes " + java.util.HexFormat.of().formatHex(bytes);
        if (value == null) return null;
        return value.getClass().getSimpleName() + " " + (value instanceof Date date ? date.getTime() : value);
    }

    static Object deaths(Delivery letter) {
        Object deaths = letter.getProperties().getHeaders().get("x-death");
        if (!(deaths instanceof List<?> list)) return null;
        List<Object> told = new java.util.ArrayList<>();
        for (Object death : list) {
            @SuppressWarnings("unchecked")
            Map<String, Object> table = (Map<String, Object>) tell(death);
            table.put("time", ((Map<?, ?>) death).get("time") instanceof Date);
            told.add(table);
        }
        return told;
    }

    static void deadLetters(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String dead = t.queue(channel, "dead");
        Inbox letters = Inbox.on(channel, dead, true);
        String source = t.queue(channel, "source", "x-message-ttl", 40, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead);
        AMQP.BasicProperties mine = new AMQP.BasicProperties.Builder().headers(Case.map("mine", 1)).expiration("20").messageId("m").build();
        Case.sure(channel, "", source, mine, Case.bytes("x"));
        Delivery letter = letters.next();
        t.saw("expired", Case.list(letter.getProperties().getMessageId(), letter.getProperties().getExpiration(), tell(letter.getProperties().getHeaders().get("mine"))), Case.list("m", null, "Integer 1"));
        t.saw("x-death", deaths(letter), Case.list(Case.map("count", "Long 1", "exchange", "", "queue", source, "reason", "expired", "routing-keys", Case.list(source), "time", true, "original-expiration", "20")));
        Map<String, Object> headers = letter.getProperties().getHeaders();
        t.saw("first death", Case.list(tell(headers.get("x-first-death-queue")), tell(headers.get("x-first-death-reason")), tell(headers.get("x-first-death-exchange"))), Case.list(source, "expired", ""));
        // Published again by hand with its headers, it dies in another queue.
        String second = t.queue(channel, "second", "x-max-length", 0, "x-dead-letter-exchange", "", "x-dead-letter-routing-key", dead);
        Case.sure(channel, "", second, letter.getProperties(), letter.getBody());
        t.saw("published again with its headers", deaths(letters.next()));
    }

    static void maxLength(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String dropping = t.queue(channel, "dropping", "x-max-length", 2);
        for (String body : List.of("1", "2", "3")) Case.sure(channel, "", dropping, body);
        t.saw("drop-head", Case.drain(channel, dropping), Case.list("2", "3"));
        String rejecting = t.queue(channel, "rejecting", "x-max-length-bytes", 3, "x-overflow", "reject-publish");
        t.saw("reject-publish by bytes", Case.list(Case.sure(channel, "", rejecting, "aaa"), Case.sure(channel, "", rejecting, "b"), Case.sure(channel, "", rejecting, "c")));
        t.saw("what stayed", Case.drain(channel, rejecting));
        boolean died = false;
        String full = t.queue(channel, "full", "x-max-length", 0, "x-overflow", "reject-publish");
        try {
            channel.basicPublish("", full, null, Case.bytes("x"));
            channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
        } catch (java.io.IOException nacked) {
            died = true;
        }
        t.saw("waitForConfirmsOrDie dies of a nack", Case.list(died, channel.isOpen()));
    }

    static void priority(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String queue = t.queue(channel, "q", "x-max-priority", 3);
        int[] priorities = {1, 3, 0, 9, 2};
        for (int priority : priorities) Case.sure(channel, "", queue, new AMQP.BasicProperties.Builder().priority(priority).build(), Case.bytes("p" + priority));
        Case.sure(channel, "", queue, "none");
        t.saw("order", Case.drain(channel, queue), Case.list("p3", "p9", "p2", "p1", "p0", "none"));
    }

    static void singleActiveConsumer(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.queue(channel, "q", "x-single-active-consumer", true);
        Inbox first = Inbox.on(channel, queue, true);
        Inbox second = Inbox.on(t.channel(), queue, true);
        t.fill(queue, 0, 3);
        t.saw("the first gets all", Case.list(first.take(3), second.quiet()), Case.list(Case.list("0", "1", "2"), true));
        channel.close();
        t.fill(queue, 3, 5);
        t.saw("its channel closed: the second", second.take(2), Case.list("3", "4"));
    }

    static void expires(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = channel.queueDeclare(t.n("q"), false, false, false, Case.map("x-expires", 300)).getQueue();
        Inbox inbox = Inbox.on(channel, queue, true);
        Thread.sleep(700);
        t.saw("used: there", channel.consumerCount(queue), 1);
        channel.basicCancel(inbox.tag);
        Thread.sleep(900);
        t.fails("unused: gone", c -> c.queueDeclarePassive(queue), t.notFound(queue));
    }
}
