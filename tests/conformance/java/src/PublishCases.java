import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.ConfirmListener;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Return;
import java.math.BigDecimal;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Date;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentSkipListSet;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

final class PublishCases {
    static final List<Main.Scenario> ALL = List.of(
        Main.Scenario.of("publish.properties", PublishCases::properties),
        Main.Scenario.of("publish.header-types", PublishCases::headerTypes),
        Main.Scenario.of("publish.sizes", PublishCases::sizes),
        Main.Scenario.of("publish.mandatory", PublishCases::mandatory),
        Main.Scenario.of("publish.errors", PublishCases::errors),
        Main.Scenario.of("publish.cc", PublishCases::cc),
        Main.Scenario.of("confirm.listener", PublishCases::listener),
        Main.Scenario.of("confirm.wait", PublishCases::await),
        Main.Scenario.of("confirm.return-before-ack", PublishCases::returnBeforeAck),
        Main.Scenario.of("confirm.nack", PublishCases::nack),
        Main.Scenario.of("confirm.mode", PublishCases::mode),
        Main.Scenario.of("tx.commit", PublishCases::commit),
        Main.Scenario.of("tx.rollback", PublishCases::rollback));

    private PublishCases() {}

    private static GetResponse roundTrip(Case t, AMQP.BasicProperties properties, byte[] body) throws Exception {
        Channel channel = t.confirmChannel();
        String queue = channel.queueDeclare().getQueue();
        Case.sure(channel, "", queue, properties, body);
        GetResponse got = channel.basicGet(queue, true);
        channel.close();
        return got;
    }

    static void properties(Case t) throws Exception {
        AMQP.BasicProperties all = new AMQP.BasicProperties.Builder().contentType("application/json").contentEncoding("gzip").headers(Case.map("h", "v")).deliveryMode(2).priority(7)
            .correlationId("c").replyTo("r").expiration("60000").messageId("m").timestamp(new Date(1_700_000_000_000L)).type("t").userId("guest").appId("a").clusterId("k").build();
        AMQP.BasicProperties got = roundTrip(t, all, Case.bytes("x")).getProps();
        t.saw("all of them", Case.list(got.getContentType(), got.getContentEncoding(), QueueCases.tell(got.getHeaders()), got.getDeliveryMode(), got.getPriority(), got.getCorrelationId(), got.getReplyTo(), got.getExpiration(),
            got.getMessageId(), got.getTimestamp().getTime(), got.getType(), got.getUserId(), got.getAppId(), got.getClusterId()),
            Case.list("application/json", "gzip", Case.map("h", "v"), 2, 7, "c", "r", "60000", "m", 1_700_000_000_000L, "t", "guest", "a", "k"));
        GetResponse bare = roundTrip(t, null, new byte[0]);
        got = bare.getProps();
        t.saw("the library's default properties", Case.list(got.getContentType(), got.getDeliveryMode(), got.getHeaders(), got.getPriority()));
        t.saw("envelope", Case.list(bare.getBody().length, bare.getEnvelope().getDeliveryTag(), bare.getEnvelope().isRedeliver(), bare.getEnvelope().getExchange(), bare.getMessageCount()), Case.list(0, 1, false, "", 0));
        t.saw("persistent text", roundTrip(t, MessageProperties.PERSISTENT_TEXT_PLAIN, Case.bytes("ż")).getProps().getDeliveryMode(), 2);
        t.saw("empty headers", roundTrip(t, new AMQP.BasicProperties.Builder().headers(Map.of()).build(), Case.bytes("x")).getProps().getHeaders().size(), 0);
    }

    static void headerTypes(Case t) throws Exception {
        Map<String, Object> sent = Case.map("text", "x", "empty", "", "int", -70000, "long", -5_000_000_000L, "short", (short) -300, "byte", (byte) -7, "true", true, "false", false, "float", 1.5f, "double", 3.141592653589793,
            "decimal", new BigDecimal("3.14"), "date", new Date(1_700_000_000_000L), "bytes", new byte[] {0, -1, 7}, "null", null, "map", Case.map("inner", Case.map("deep", 1L), "list", Case.list()),
            "list", Case.list("a", 1, null, Case.list(true), Case.map("k", "v")), "array", new Object[] {"a", 2});
        Map<String, Object> want = Case.map();
        sent.forEach((name, value) -> want.put(name, QueueCases.tell(value)));
        want.put("array", Case.list("a", "Integer 2"));
        t.saw("every type", QueueCases.tell(roundTrip(t, new AMQP.BasicProperties.Builder().headers(sent).build(), Case.bytes("x")).getProps().getHeaders()), want);
        Map<String, Object> many = Case.map();
        for (int index = 0; index < 1000; index++) many.put("header-" + index, index);
        t.saw("a thousand headers", roundTrip(t, new AMQP.BasicProperties.Builder().headers(many).build(), Case.bytes("x")).getProps().getHeaders().size(), 1000);
    }

    static void sizes(Case t) throws Exception {
        for (int size : new int[] {1, 131_063, 131_064, 131_065, 262_129, 3_000_000, 12_000_000}) t.saw(size + " bytes", Arrays.equals(roundTrip(t, null, Case.pattern(size)).getBody(), Case.pattern(size)), true);
        t.saw("the largest that the broker takes", roundTrip(t, null, new byte[16_777_216]).getBody().length, 16_777_216);
        t.fails("one byte more", c -> c.basicPublish("", t.n("nowhere"), null, new byte[16_777_217]),
            Case.fault(406, "PRECONDITION_FAILED - message size 16777217 is larger than configured max size 16777216"));
    }

    static void mandatory(Case t) throws Exception {
        Channel channel = t.channel();
        BlockingQueue<Return> returns = new LinkedBlockingQueue<>();
        channel.addReturnListener(returns::add);
        channel.basicPublish("amq.direct", t.n("no one"), true, new AMQP.BasicProperties.Builder().headers(Case.map("h", 1)).build(), Case.bytes("back"));
        Return back = Case.next(returns);
        t.saw("a return", Case.list(back.getReplyCode(), back.getReplyText(), back.getExchange(), back.getRoutingKey(), QueueCases.tell(back.getProperties().getHeaders()), Case.text(back.getBody())),
            Case.list(312, "NO_ROUTE", "amq.direct", t.n("no one"), Case.map("h", "Integer 1"), "back"));
        channel.basicPublish("", t.n("nowhere"), true, null, Case.pattern(500_000));
        t.saw("a large one whole", Arrays.equals(Case.next(returns).getBody(), Case.pattern(500_000)), true);
        channel.basicPublish("", t.queue(channel, "q"), true, null, Case.bytes("routed"));
        channel.basicPublish("", t.n("nowhere"), false, null, Case.bytes("dropped"));
        channel.basicQos(1);
        t.saw("routed, or not mandatory", returns.size(), 0);
    }

    static void errors(Case t) throws Exception {
        t.fails("missing exchange", c -> Case.publish(c, t.n("missing"), "k", "x"), Case.fault(404, "NOT_FOUND - no exchange '" + t.n("missing") + "' in vhost '/'"));
        t.fails("immediate", c -> c.basicPublish("", "k", false, true, null, Case.bytes("x")), Case.fault(540, "NOT_IMPLEMENTED - immediate=true", "connection"));
        t.fails("another's user id", c -> c.basicPublish("", "k", new AMQP.BasicProperties.Builder().userId("someone").build(), Case.bytes("x")),
            Case.fault(406, "PRECONDITION_FAILED - user_id property set to 'someone' but authenticated user was 'guest'"));
        t.fails("bad expiration", c -> c.basicPublish("", "k", new AMQP.BasicProperties.Builder().expiration("soon").build(), Case.bytes("x")));
        t.fails("negative expiration", c -> c.basicPublish("", "k", new AMQP.BasicProperties.Builder().expiration("-3").build(), Case.bytes("x")));
        t.fails("CC is a number", c -> c.basicPublish("", "k", new AMQP.BasicProperties.Builder().headers(Case.map("CC", 1)).build(), Case.bytes("x")));
    }

    static void cc(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String to = t.queue(channel, "to");
        String cc = t.queue(channel, "cc");
        String bcc = t.queue(channel, "bcc");
        Case.sure(channel, "", to, new AMQP.BasicProperties.Builder().headers(Case.map("CC", Case.list(cc), "BCC", Case.list(bcc, to))).build(), Case.bytes("x"));
        for (String queue : List.of(to, cc, bcc)) {
            GetResponse got = channel.basicGet(queue, true);
            t.saw(queue, Case.list(QueueCases.tell(got.getProps().getHeaders()), got.getEnvelope().getRoutingKey(), got.getMessageCount()), Case.list(Case.map("CC", Case.list(cc)), to, 0));
        }
    }

    /** Keeps what is not settled in a sorted set and clears the head of it for multiple, as the tutorials do. */
    static void listener(Case t) throws Exception {
        final int count = 5000;
        Channel channel = t.confirmChannel();
        String queue = t.queue(channel, "q");
        ConcurrentSkipListSet<Long> open = new ConcurrentSkipListSet<>();
        AtomicInteger nacks = new AtomicInteger();
        AtomicInteger unknown = new AtomicInteger();
        CountDownLatch settled = new CountDownLatch(count);
        channel.addConfirmListener(new ConfirmListener() {
            private void settle(long tag, boolean multiple) {
                if (!open.contains(tag)) unknown.incrementAndGet();
                if (multiple) {
                    var head = open.headSet(tag, true);
                    int size = head.size();
                    head.clear();
                    for (int index = 0; index < size; index++) settled.countDown();
                } else if (open.remove(tag)) {
                    settled.countDown();
                }
            }

            @Override
            public void handleAck(long tag, boolean multiple) {
                settle(tag, multiple);
            }

            @Override
            public void handleNack(long tag, boolean multiple) {
                nacks.incrementAndGet();
                settle(tag, multiple);
            }
        });
        t.saw("first number", channel.getNextPublishSeqNo(), 1);
        for (int index = 0; index < count; index++) {
            open.add(channel.getNextPublishSeqNo());
            channel.basicPublish("", queue, index % 2 == 0 ? MessageProperties.PERSISTENT_BASIC : MessageProperties.BASIC, Case.bytes("x"));
        }
        t.saw("all settle, each once, none refused", Case.list(settled.await(10, TimeUnit.SECONDS), open.size(), nacks.get(), unknown.get()), Case.list(true, 0, 0, 0));
        t.saw("in the queue", channel.queuePurge(queue).getMessageCount(), count);
    }

    static void await(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String queue = channel.queueDeclare(t.n("q"), true, false, false, null).getQueue();
        for (int index = 0; index < 500; index++) channel.basicPublish("", queue, MessageProperties.MINIMAL_PERSISTENT_BASIC, Case.bytes("x"));
        t.saw("500 persistent", channel.waitForConfirms(10_000), true);
        t.saw("nothing to wait for", channel.waitForConfirms(1), true);
        t.saw("unroutable", Case.sure(channel, "", t.n("nowhere"), "x"), true);
        t.saw("expired at once", Case.sure(channel, "", queue, new AMQP.BasicProperties.Builder().expiration("0").build(), Case.bytes("x")), true);
        t.cleanUp(Case.list(queue), Case.list());
        boolean refused = false;
        try {
            t.channel().waitForConfirms(1);
        } catch (IllegalStateException notSelected) {
            refused = true;
        }
        t.saw("without confirm.select the library refuses", refused, true);
    }

    static void returnBeforeAck(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        List<String> events = new ArrayList<>();
        CountDownLatch done = new CountDownLatch(10);
        AtomicInteger acked = new AtomicInteger();
        channel.addReturnListener(message -> events.add("return " + Case.text(message.getBody())));
        // Both listeners are called by the connection's one reading thread.
        channel.addConfirmListener((tag, multiple) -> {
            int first = multiple ? acked.get() + 1 : (int) tag;
            for (int one = first; one <= tag; one++) {
                events.add("ack " + one);
                done.countDown();
            }
            acked.set((int) tag);
        }, (tag, multiple) -> events.add("nack"));
        for (int index = 1; index <= 10; index++) channel.basicPublish("", t.n("nowhere"), true, null, Case.bytes(String.valueOf(index)));
        boolean all = done.await(Case.PATIENCE_MS, TimeUnit.MILLISECONDS);
        boolean before = true;
        for (int index = 1; index <= 10; index++) before &= events.indexOf("return " + index) >= 0 && events.indexOf("return " + index) < events.indexOf("ack " + index);
        t.saw("every return strictly before its ack", Case.list(all, before, events.size()), Case.list(true, true, 20));
    }

    static void nack(Case t) throws Exception {
        Channel channel = t.confirmChannel();
        String queue = t.queue(channel, "q", "x-max-length", 3, "x-overflow", "reject-publish");
        TreeSet<Long> nacked = new TreeSet<>();
        TreeSet<Long> acked = new TreeSet<>();
        channel.addConfirmListener((tag, multiple) -> {
            for (long one = multiple ? 1 : tag; one <= tag; one++) if (!nacked.contains(one)) acked.add(one);
        }, (tag, multiple) -> {
            for (long one = multiple ? 1 : tag; one <= tag; one++) if (!acked.contains(one)) nacked.add(one);
        });
        for (int index = 0; index < 10; index++) {
            Case.publish(channel, "", queue, "x");
            channel.waitForConfirms(Case.PATIENCE_MS);
        }
        t.saw("acks", List.copyOf(acked), Case.list(1, 2, 3));
        t.saw("nacks", nacked.size(), 7);
    }

    static void mode(Case t) throws Exception {
        t.fails("confirm after tx", c -> {
            c.txSelect();
            c.confirmSelect();
        }, Case.fault(406, "PRECONDITION_FAILED - cannot switch from tx to confirm mode"));
        t.fails("tx after confirm", c -> {
            c.confirmSelect();
            c.txSelect();
        }, Case.fault(406, "PRECONDITION_FAILED - cannot switch from confirm to tx mode"));
        t.fails("commit without select", c -> c.txCommit(), Case.fault(406, "PRECONDITION_FAILED - channel is not transactional"));
        t.fails("rollback without select", c -> c.txRollback(), Case.fault(406, "PRECONDITION_FAILED - channel is not transactional"));
    }

    static void commit(Case t) throws Exception {
        Channel channel = t.channel();
        Channel reader = t.channel();
        String queue = t.queue(channel, "q");
        channel.txSelect();
        for (int index = 0; index < 100; index++) Case.publish(channel, "", queue, String.valueOf(index));
        t.saw("held", channel.messageCount(queue), 0);
        channel.txCommit();
        t.saw("committed", reader.messageCount(queue), 100);
        GetResponse first = channel.basicGet(queue, false);
        channel.basicAck(first.getEnvelope().getDeliveryTag(), false);
        channel.txRollback();
        channel.basicAck(first.getEnvelope().getDeliveryTag(), false);
        channel.txCommit();
        channel.close();
        t.saw("an ack that was rolled back can be repeated", reader.messageCount(queue), 99);
    }

    static void rollback(Case t) throws Exception {
        Channel channel = t.channel();
        Channel reader = t.channel();
        String queue = t.queue(channel, "q");
        channel.txSelect();
        Case.publish(channel, "", queue, "undone");
        channel.txRollback();
        Case.publish(channel, "", queue, "never committed");
        channel.close();
        t.saw("nothing", reader.messageCount(queue), 0);
    }
}
