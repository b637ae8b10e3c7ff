import com.rabbitmq.client.AlreadyClosedException;
import com.rabbitmq.client.AuthenticationFailureException;
import com.rabbitmq.client.BlockedListener;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.ShutdownSignalException;
import java.net.Socket;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

final class ConnectionCases {
    static final List<Main.Scenario> ALL = List.of(
        Main.Scenario.of("connection.properties", ConnectionCases::properties),
        Main.Scenario.of("connection.tune", ConnectionCases::tune),
        Main.Scenario.of("connection.login", ConnectionCases::login),
        Main.Scenario.of("connection.close", ConnectionCases::close),
        Main.Scenario.of("connection.channels", ConnectionCases::channels),
        Main.Scenario.of("connection.many", ConnectionCases::many),
        Main.Scenario.of("connection.churn", ConnectionCases::churn),
        Main.Scenario.of("connection.blocked-listener", ConnectionCases::blockedListener),
        Main.Scenario.of("connection.abandoned", ConnectionCases::abandoned),
        Main.Scenario.beside("connection.heartbeat", ConnectionCases::heartbeat),
        Main.Scenario.of("channel.numbers", ConnectionCases::numbers),
        Main.Scenario.of("channel.survivors", ConnectionCases::survivors),
        Main.Scenario.of("permission.limited", ConnectionCases::limited));

    private ConnectionCases() {}

    static void properties(Case t) throws Exception {
        Map<String, Object> properties = t.connection().getServerProperties();
        Set<String> missing = new TreeSet<>(List.of("capabilities", "cluster_name", "copyright", "information", "platform", "product", "version"));
        missing.removeAll(properties.keySet());
        t.saw("missing server properties", missing, Case.list());
        t.saw("capabilities", properties.get("capabilities"), Case.map("publisher_confirms", true, "exchange_exchange_bindings", true, "basic.nack", true, "consumer_cancel_notify", true,
            "connection.blocked", true, "consumer_priorities", true, "authentication_failure_close", true, "per_consumer_qos", true, "direct_reply_to", true));
        t.saw("version is a RabbitMQ 3 level", properties.get("version").toString().startsWith("3."), true);
        ConnectionFactory factory = t.factory();
        Map<String, Object> mine = factory.getClientProperties();
        mine.put("nested", Case.map("list", Case.list(1, "two", null, true)));
        factory.setClientProperties(mine);
        Connection named = t.keep(factory.newConnection("java conformance"));
        t.saw("named", named.getClientProvidedName(), "java conformance");
    }

    static void tune(Case t) throws Exception {
        Connection first = t.connection();
        t.saw("limits", Case.list(first.getChannelMax(), first.getFrameMax(), first.getHeartbeat()), Case.list(2047, 131072, 60));
        ConnectionFactory factory = t.factory();
        factory.setRequestedChannelMax(3);
        factory.setRequestedFrameMax(4096);
        factory.setRequestedHeartbeat(11);
        Connection small = t.keep(factory.newConnection());
        t.saw("smaller limits", Case.list(small.getChannelMax(), small.getFrameMax(), small.getHeartbeat()), Case.list(3, 4096, 11));
        Channel channel = small.createChannel();
        channel.confirmSelect();
        String queue = t.queue(channel, "q");
        for (int size : new int[] {0, 1, 4088, 4089, 60000}) {
            Case.sure(channel, "", queue, null, Case.pattern(size));
            t.saw(size + " bytes through frames of 4096", java.util.Arrays.equals(channel.basicGet(queue, true).getBody(), Case.pattern(size)), true);
        }
        for (int index = 0; index < 2; index++) small.createChannel();
        t.saw("a fourth channel of three", small.createChannel() == null, true);
        factory.setRequestedHeartbeat(0);
        t.saw("no wish for heartbeats: the broker's", t.keep(factory.newConnection()).getHeartbeat(), 60);
    }

    private static Object refusal(Case t, String user, String password, String vhost) throws Exception {
        ConnectionFactory factory = t.factory();
        factory.setUsername(user);
        factory.setPassword(password);
        factory.setVirtualHost(vhost);
        try {
            t.keep(factory.newConnection());
            return "connected";
        } catch (AuthenticationFailureException refused) {
            return Case.fault(403, refused.getMessage(), "connection");
        } catch (Exception refused) {
            return Case.describe(refused);
        }
    }

    static void login(Case t) throws Exception {
        Object refused = Case.fault(403, "ACCESS_REFUSED - Login was refused using authentication mechanism PLAIN. For details see the broker logfile.", "connection");
        t.saw("wrong password", refusal(t, "guest", "wrong", "/"), refused);
        t.saw("unknown user", refusal(t, "nobody-here", "guest", "/"), refused);
        t.saw("missing vhost", refusal(t, "guest", "guest", "missing"), Case.fault(530, "NOT_ALLOWED - vhost missing not found", "connection"));
        t.saw("refused vhost", refusal(t, "limited", "limited-pass", "other"), Case.fault(530, "NOT_ALLOWED - access to vhost 'other' refused for user 'limited'", "connection"));
        t.saw("other vhost", refusal(t, "guest", "guest", "other"), "connected");
    }

    static void close(Case t) throws Exception {
        Connection connection = t.newConnection();
        Channel channel = connection.createChannel();
        List<Object> heard = java.util.Collections.synchronizedList(new ArrayList<>());
        channel.addShutdownListener(signal -> heard.add("channel, by us " + signal.isInitiatedByApplication() + ", hard " + signal.isHardError()));
        connection.addShutdownListener(signal -> heard.add("connection, by us " + signal.isInitiatedByApplication() + ", hard " + signal.isHardError()));
        channel.close(200, "enough");
        connection.close(200, "done", 5000);
        Case.eventually("both are told", () -> heard.size() == 2);
        t.saw("listeners", heard, Case.list("channel, by us true, hard false", "connection, by us true, hard true"));
        boolean refused = false;
        try {
            channel.queueDeclare();
        } catch (AlreadyClosedException closed) {
            refused = true;
        }
        t.saw("a closed channel refuses", refused, true);
        Connection other = t.newConnection();
        Channel open = other.createChannel();
        CompletableFuture<ShutdownSignalException> end = new CompletableFuture<>();
        open.addShutdownListener(end::complete);
        other.close();
        t.saw("closing a connection closes its channels", Case.get(end).isInitiatedByApplication(), true);
    }

    static void channels(Case t) throws Exception {
        Connection connection = t.newConnection();
        String queue = t.queue(connection.createChannel(), "q");
        ExecutorService pool = Executors.newFixedThreadPool(16);
        List<Future<Integer>> work = new ArrayList<>();
        for (int index = 0; index < 200; index++) {
            work.add(pool.submit(() -> {
                Channel channel = connection.createChannel();
                channel.confirmSelect();
                for (int message = 0; message < 10; message++) Case.publish(channel, "", queue, "x");
                channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
                int number = channel.getChannelNumber();
                channel.close();
                return number;
            }));
        }
        for (Future<Integer> one : work) one.get();
        pool.shutdown();
        t.saw("200 channels from 16 threads", connection.createChannel().queueDelete(queue).getMessageCount(), 2000);
    }

    static void many(Case t) throws Exception {
        Channel setup = t.channel();
        String queue = setup.queueDeclare(t.n("q"), false, false, false, null).getQueue();
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<?>> work = new ArrayList<>();
        for (int index = 0; index < 40; index++) {
            work.add(pool.submit(() -> {
                try (Connection connection = t.factory().newConnection(); Channel channel = connection.createChannel()) {
                    channel.confirmSelect();
                    Case.publish(channel, "", queue, "x");
                    channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
                }
                return null;
            }));
        }
        for (Future<?> one : work) one.get();
        pool.shutdown();
        t.saw("40 connections", setup.queueDelete(queue).getMessageCount(), 40);
    }

    static void churn(Case t) throws Exception {
        ConnectionFactory factory = t.factory();
        factory.setRequestedChannelMax(1);
        Connection connection = t.keep(factory.newConnection());
        for (int index = 0; index < 200; index++) {
            Channel channel = connection.createChannel();
            Case.publish(channel, "", t.n("nowhere"), "x");
            channel.close();
        }
        t.saw("200 channels one after another over one number", connection.isOpen(), true);
    }

    static void blockedListener(Case t) throws Exception {
        AtomicInteger calls = new AtomicInteger();
        Connection connection = t.newConnection();
        connection.addBlockedListener(new BlockedListener() {
            @Override
            public void handleBlocked(String reason) {
                calls.incrementAndGet();
            }

            @Override
            public void handleUnblocked() {
                calls.incrementAndGet();
            }
        });
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        for (int index = 0; index < 100; index++) channel.basicPublish("", t.n("nowhere"), null, Case.pattern(1000));
        channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
        t.saw("no notifications without an alarm", calls.get(), 0);
    }

    static void abandoned(Case t) throws Exception {
        AtomicReference<Socket> socket = new AtomicReference<>();
        ConnectionFactory factory = t.factory();
        factory.setSocketConfigurator(socket::set);
        Connection connection = t.keep(factory.newConnection());
        Channel setup = t.channel();
        String queue = setup.queueDeclare(t.n("q"), false, false, false, null).getQueue();
        t.fill(queue, 0, 3);
        Inbox inbox = Inbox.on(connection.createChannel(), queue, false);
        inbox.take(3);
        socket.get().close();
        t.saw("the consumer hears of it", Case.next(inbox.events), "shutdown by the broker");
        Case.eventually("all three are back", () -> t.ready(queue) == 3);
        t.saw("in order", Case.drain(setup, queue), Case.list("0", "1", "2"));
        t.cleanUp(Case.list(queue), Case.list());
    }

    static void heartbeat(Case t) throws Exception {
        ConnectionFactory factory = t.factory();
        factory.setRequestedHeartbeat(1);
        Connection connection = t.keep(factory.newConnection());
        Channel channel = connection.createChannel();
        Thread.sleep(4000);
        t.saw("idle for four intervals", connection.isOpen(), true);
        t.saw("and of use", channel.queueDeclare().getMessageCount(), 0);
    }

    static void numbers(Case t) throws Exception {
        Connection connection = t.newConnection();
        Channel high = connection.createChannel(2047);
        t.saw("the highest number", high.queueDeclare().getConsumerCount(), 0);
        high.close();
        Channel again = connection.createChannel(2047);
        t.saw("again", again.getChannelNumber(), 2047);
    }

    static void survivors(Case t) throws Exception {
        Connection connection = t.connection();
        Channel other = t.confirmChannel();
        String queue = t.queue(other, "q");
        t.fails("missing exchange", channel -> Case.publish(channel, t.n("missing"), "k", "x"), Case.fault(404, "NOT_FOUND - no exchange '" + t.n("missing") + "' in vhost '/'"));
        t.saw("the connection stays", connection.isOpen(), true);
        t.saw("the other channel publishes", Case.sure(other, "", queue, "x"), true);
    }

    static void limited(Case t) throws Exception {
        ConnectionFactory factory = t.factory();
        factory.setUsername("limited");
        factory.setPassword("limited-pass");
        Connection connection = t.keep(factory.newConnection());
        t.failsOn(connection, "declare", channel -> channel.queueDeclare(t.n("q"), false, true, false, null),
            Case.fault(403, "ACCESS_REFUSED - configure access to queue '" + t.n("q") + "' in vhost '/' refused for user 'limited'"));
        t.failsOn(connection, "publish", channel -> Case.publish(channel, "amq.headers", "", "x"),
            Case.fault(403, "ACCESS_REFUSED - write access to exchange 'amq.headers' in vhost '/' refused for user 'limited'"));
        String dead = "limited.conf.java";
        t.failsOn(connection, "dead letters to where it may not write", channel -> channel.queueDeclare(dead, false, true, false, Case.map("x-dead-letter-exchange", "amq.fanout")),
            Case.fault(403, "ACCESS_REFUSED - write access to exchange 'amq.fanout' in vhost '/' refused for user 'limited'"));
    }
}
