import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.RpcClient;
import com.rabbitmq.client.RpcClientParams;
import com.rabbitmq.client.RpcServer;
import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;

final class ConsumeCases {
    static final List<Main.Scenario> ALL = List.of(
        Main.Scenario.of("consume.basics", ConsumeCases::basics),
        Main.Scenario.of("consume.callbacks", ConsumeCases::callbacks),
        Main.Scenario.of("consume.order", ConsumeCases::order),
        Main.Scenario.of("consume.qos", ConsumeCases::qos),
        Main.Scenario.of("consume.qos-global", ConsumeCases::qosGlobal),
        Main.Scenario.of("consume.nack", ConsumeCases::nack),
        Main.Scenario.of("consume.recover", ConsumeCases::recover),
        Main.Scenario.of("consume.ack-errors", ConsumeCases::ackErrors),
        Main.Scenario.of("consume.server-cancel", ConsumeCases::serverCancel),
        Main.Scenario.of("consume.exclusive", ConsumeCases::exclusive),
        Main.Scenario.of("consume.priority", ConsumeCases::priority),
        Main.Scenario.of("consume.errors", ConsumeCases::errors),
        Main.Scenario.of("get.counts", ConsumeCases::get),
        Main.Scenario.of("rpc.client-and-server", ConsumeCases::rpc),
        Main.Scenario.of("rpc.errors", ConsumeCases::rpcErrors),
        Main.Scenario.of("flow.workers", ConsumeCases::workers));

    private ConsumeCases() {}

    static void basics(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.filled("q", 3);
        Inbox inbox = new Inbox(channel);
        t.saw("tag", channel.basicConsume(queue, false, "my-tag", inbox), "my-tag");
        Delivery first = inbox.next();
        t.saw("first", Case.list(first.getEnvelope().getDeliveryTag(), first.getEnvelope().isRedeliver(), first.getEnvelope().getExchange(), first.getEnvelope().getRoutingKey(), Case.text(first.getBody())),
            Case.list(1, false, "", queue, "0"));
        t.saw("the others", inbox.take(2), Case.list("1", "2"));
        channel.basicAck(3, true);
        channel.basicCancel("my-tag");
        t.saw("told", Case.next(inbox.events), "cancel-ok");
        channel.close();
        t.saw("all acked", t.ready(queue), 0);
        Channel other = t.channel();
        t.saw("tag from the server", other.basicConsume(queue, true, new Inbox(other)).matches("amq\\.ctag-[A-Za-z0-9_-]{22}"), true);
    }

    static void callbacks(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.queue(channel, "q");
        BlockingQueue<String> events = new LinkedBlockingQueue<>();
        channel.basicConsume(queue, true, (tag, delivery) -> events.add(Case.text(delivery.getBody())), tag -> events.add("cancelled"), (tag, signal) -> events.add("shut down"));
        t.fill(queue, 0, 2);
        t.saw("delivered", Case.list(Case.next(events), Case.next(events)), Case.list("0", "1"));
        t.channel().queueDelete(queue);
        t.saw("queue deleted", Case.next(events), "cancelled");
        String second = t.queue(channel, "second");
        channel.basicConsume(second, true, (tag, delivery) -> {}, tag -> {}, (tag, signal) -> events.add("shut down"));
        channel.close();
        t.saw("channel closed", Case.next(events), "shut down");
    }

    static void order(Case t) throws Exception {
        final int count = 5000;
        Channel channel = t.channel();
        String queue = t.queue(channel, "q");
        channel.basicQos(200);
        Inbox inbox = Inbox.on(channel, queue, false);
        Thread publisher = new Thread(() -> {
            try {
                t.fill(queue, 0, count);
            } catch (Exception error) {
                t.broke(error);
            }
        });
        publisher.start();
        boolean ordered = true;
        for (int index = 0; index < count; index++) {
            Delivery delivery = inbox.next();
            ordered &= Case.text(delivery.getBody()).equals(String.valueOf(index)) && delivery.getEnvelope().getDeliveryTag() == index + 1;
            if (index % 100 == 99) channel.basicAck(delivery.getEnvelope().getDeliveryTag(), true);
        }
        publisher.join();
        t.saw("5000 in order", ordered, true);
    }

    static void qos(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.filled("q", 10);
        channel.basicQos(2);
        Inbox inbox = Inbox.on(channel, queue, false);
        t.saw("two, then none", Case.list(inbox.take(2), inbox.quiet()), Case.list(Case.list("0", "1"), true));
        channel.basicAck(1, false);
        t.saw("one more for an ack", inbox.take(1), Case.list("2"));
        channel.basicNack(2, false, false);
        t.saw("one more for a nack", inbox.take(1), Case.list("3"));
        channel.basicAck(0, true);
        t.saw("two more for all", Case.list(inbox.take(2), inbox.quiet()), Case.list(Case.list("4", "5"), true));
        GetResponse got = channel.basicGet(queue, false);
        t.saw("get is not limited", Case.text(got.getBody()), "6");
        t.fails("by size", c -> c.basicQos(100, 1, false), Case.fault(540, "NOT_IMPLEMENTED - prefetch_size!=0 (100)", "connection"));
    }

    static void qosGlobal(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.filled("q", 20);
        channel.basicQos(10, false);
        channel.basicQos(15, true);
        Inbox first = Inbox.on(channel, queue, false);
        Thread.sleep(150);
        t.saw("the consumer's own limit", first.deliveries.size(), 10);
        Inbox second = Inbox.on(channel, queue, false);
        Thread.sleep(150);
        t.saw("with a second one: the channel's", first.deliveries.size() + second.deliveries.size(), 15);
        channel.basicQos(0, true);
        Thread.sleep(150);
        t.saw("without the channel's", first.deliveries.size() + second.deliveries.size(), 20);
    }

    static void nack(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.filled("q", 5);
        for (int index = 0; index < 5; index++) channel.basicGet(queue, false);
        channel.basicNack(2, true, true);
        channel.basicReject(4, true);
        channel.basicReject(3, false);
        List<Object> seen = new ArrayList<>();
        for (GetResponse got = channel.basicGet(queue, true); got != null; got = channel.basicGet(queue, true)) seen.add(Case.list(Case.text(got.getBody()), got.getEnvelope().isRedeliver()));
        t.saw("requeued to the old places", seen, Case.list(Case.list("0", true), Case.list("1", true), Case.list("3", true)));
        channel.close();
        t.saw("the last comes with the channel's close", Case.drain(t.channel(), queue), Case.list("4"));
    }

    static void recover(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.filled("q", 2);
        Inbox inbox = Inbox.on(channel, queue, false);
        inbox.take(2);
        channel.basicRecover(true);
        t.saw("told", Case.next(inbox.events), "recover-ok");
        Delivery first = inbox.next();
        Delivery second = inbox.next();
        t.saw("again, marked", Case.list(Case.text(first.getBody()), first.getEnvelope().isRedeliver(), Case.text(second.getBody()), second.getEnvelope().isRedeliver()), Case.list("0", true, "1", true));
        channel.basicAck(second.getEnvelope().getDeliveryTag(), true);
        t.fails("without requeue", c -> c.basicRecover(false), Case.fault(540, "NOT_IMPLEMENTED - requeue=false", "connection"));
    }

    static void ackErrors(Case t) throws Exception {
        t.fails("ack", c -> c.basicAck(3, false), Case.fault(406, "PRECONDITION_FAILED - unknown delivery tag 3"));
        t.fails("ack of many", c -> c.basicAck(3, true), Case.fault(406, "PRECONDITION_FAILED - unknown delivery tag 3"));
        t.fails("nack", c -> c.basicNack(4, false, true), Case.fault(406, "PRECONDITION_FAILED - unknown delivery tag 4"));
        t.fails("reject", c -> c.basicReject(5, true), Case.fault(406, "PRECONDITION_FAILED - unknown delivery tag 5"));
        String queue = t.filled("q", 3);
        t.fails("multiple up to a tag already acked", c -> {
            for (int index = 0; index < 3; index++) c.basicGet(queue, false);
            c.basicAck(2, false);
            c.basicAck(2, true);
        }, Case.fault(406, "PRECONDITION_FAILED - unknown delivery tag 2"));
        Case.eventually("two are back", () -> t.ready(queue) == 2);
        t.saw("the others are back", Case.drain(t.channel(), queue), Case.list("0", "2"));
    }

    static void serverCancel(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = channel.queueDeclare(t.n("q"), false, false, false, null).getQueue();
        Inbox inbox = Inbox.on(channel, queue, false);
        Connection other = t.newConnection();
        other.createChannel().queueDelete(queue);
        t.saw("told", Case.next(inbox.events), "cancel");
        t.saw("the channel goes on", channel.queueDeclare().getMessageCount(), 0);
    }

    static void exclusive(Case t) throws Exception {
        String queue = t.filled("q", 0);
        Channel channel = t.channel();
        channel.basicConsume(queue, true, "sole", false, true, null, new Inbox(channel));
        t.fails("a second one", c -> c.basicConsume(queue, new Inbox(c)), Case.fault(403, "ACCESS_REFUSED - queue '" + queue + "' in vhost '/' in exclusive use"));
    }

    static void priority(Case t) throws Exception {
        String queue = t.filled("q", 0);
        Channel channel = t.channel();
        Inbox low = new Inbox(channel);
        Inbox high = new Inbox(channel);
        channel.basicConsume(queue, true, Case.map("x-priority", -5), low);
        channel.basicConsume(queue, true, Case.map("x-priority", 5L), high);
        t.fill(queue, 0, 3);
        t.saw("the higher priority gets all", Case.list(high.take(3), low.quiet()), Case.list(Case.list("0", "1", "2"), true));
    }

    static void errors(Case t) throws Exception {
        t.fails("missing queue", c -> c.basicConsume(t.n("missing"), new Inbox(c)), t.notFound(t.n("missing")));
        t.fails("no queue declared", c -> c.basicConsume("", new Inbox(c)), Case.fault(404, "NOT_FOUND - no previously declared queue"));
        String queue = t.queue(t.channel(), "q");
        t.fails("tag used twice", c -> {
            c.basicConsume(queue, true, "same", new Inbox(c));
            c.basicConsume(queue, true, "same", new Inbox(c));
        }, Case.fault(530, "NOT_ALLOWED - attempt to reuse consumer tag 'same'", "connection"));
    }

    static void get(Case t) throws Exception {
        Channel channel = t.channel();
        String queue = t.filled("q", 2);
        GetResponse first = channel.basicGet(queue, false);
        t.saw("first", Case.list(Case.text(first.getBody()), first.getMessageCount(), first.getEnvelope().getDeliveryTag()), Case.list("0", 1, 1));
        GetResponse second = channel.basicGet(queue, true);
        t.saw("second", Case.list(Case.text(second.getBody()), second.getMessageCount(), second.getEnvelope().getDeliveryTag()), Case.list("1", 0, 2));
        t.saw("empty", channel.basicGet(queue, true), (Object) null);
        channel.basicAck(1, false);
        t.fails("missing", c -> c.basicGet(t.n("missing"), true), t.notFound(t.n("missing")));
    }

    /** The library's RpcClient uses direct reply-to by itself. */
    static void rpc(Case t) throws Exception {
        Channel serverChannel = t.newConnection().createChannel();
        String queue = t.queue(serverChannel, "q");
        RpcServer server = new RpcServer(serverChannel, queue) {
            @Override
            public byte[] handleCall(byte[] request, AMQP.BasicProperties replyProperties) {
                return Case.bytes("re:" + Case.text(request));
            }
        };
        Thread loop = new Thread(() -> {
            try {
                server.mainloop();
            } catch (Exception ended) {
                // The connection is closed at the end of the case.
            }
        });
        loop.setDaemon(true);
        loop.start();
        RpcClient client = new RpcClient(new RpcClientParams().channel(t.channel()).exchange("").routingKey(queue).timeout((int) Case.PATIENCE_MS));
        boolean right = true;
        for (int index = 0; index < 100; index++) right &= client.stringCall("call " + index).equals("re:call " + index);
        t.saw("a hundred calls by direct reply-to", right, true);
        String answers = t.queue(t.channel(), "answers");
        RpcClient named = new RpcClient(new RpcClientParams().channel(t.channel()).exchange("").routingKey(queue).replyTo(answers).timeout((int) Case.PATIENCE_MS));
        t.saw("over a queue of its own", named.stringCall("x"), "re:x");
        RpcClient lost = new RpcClient(new RpcClientParams().channel(t.channel()).exchange("").routingKey(t.n("nowhere")).useMandatory().timeout((int) Case.PATIENCE_MS));
        String said = "an answer";
        try {
            lost.stringCall("x");
        } catch (Exception unroutable) {
            said = unroutable.getClass().getSimpleName();
        }
        t.saw("a mandatory call to no one", said, "UnroutableRpcRequestException");
        server.terminateMainloop();
    }

    static void rpcErrors(Case t) throws Exception {
        String replyTo = "amq.rabbitmq.reply-to";
        t.fails("with acks", c -> c.basicConsume(replyTo, false, new Inbox(c)), Case.fault(406, "PRECONDITION_FAILED - reply consumer cannot acknowledge"));
        t.fails("without a consumer", c -> c.basicPublish("", "q", new AMQP.BasicProperties.Builder().replyTo(replyTo).build(), Case.bytes("x")),
            Case.fault(406, "PRECONDITION_FAILED - fast reply consumer does not exist"));
    }

    static void workers(Case t) throws Exception {
        final int count = 2000;
        Channel channel = t.confirmChannel();
        String queue = channel.queueDeclare(t.n("q"), true, false, false, null).getQueue();
        Set<String> done = ConcurrentHashMap.newKeySet();
        AtomicInteger again = new AtomicInteger();
        CountDownLatch finished = new CountDownLatch(count);
        for (int worker = 0; worker < 4; worker++) {
            Channel own = t.newConnection().createChannel();
            own.basicQos(10);
            own.basicConsume(queue, false, (tag, delivery) -> {
                String body = Case.text(delivery.getBody());
                long deliveryTag = delivery.getEnvelope().getDeliveryTag();
                if (body.endsWith("3") && !delivery.getEnvelope().isRedeliver()) {
                    again.incrementAndGet();
                    own.basicNack(deliveryTag, false, true);
                } else {
                    if (done.add(body)) finished.countDown();
                    own.basicAck(deliveryTag, false);
                }
            }, tag -> {});
        }
        for (int index = 0; index < count; index++) {
            channel.basicPublish("", queue, com.rabbitmq.client.MessageProperties.PERSISTENT_TEXT_PLAIN, Case.bytes(String.valueOf(index)));
            if (index % 100 == 99) channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
        }
        t.saw("all done, the failed ones twice", Case.list(finished.await(10, TimeUnit.SECONDS), done.size(), again.get()), Case.list(true, count, count / 10));
        Case.eventually("the queue is empty", () -> t.ready(queue) == 0);
        t.cleanUp(Case.list(queue), Case.list());
    }
}
