import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.GetResponse;
import com.rabbitmq.client.Method;
import com.rabbitmq.client.ShutdownSignalException;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Callable;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;

/** One running case: its connections, its trace (see ../../README.md), and waiting with a limit. */
final class Case {
    static final long PATIENCE_MS = 5000;
    static final long QUIET_MS = 120;
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);
    private static final BufferedReader IN = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));

    interface Operation {
        void on(Channel channel) throws Exception;
    }

    final String name;
    final String uri;
    private final List<Connection> connections = new ArrayList<>();
    private Connection main;
    private int step;
    private boolean over;

    Case(String name, String uri) {
        this.name = name;
        this.uri = uri;
    }

    // ---- trace

    private static synchronized void print(Object line) {
        OUT.println(Json.of(line));
        OUT.flush();
    }

    synchronized void saw(String what, Object saw) {
        line(what, saw, false, null);
    }

    synchronized void saw(String what, Object saw, Object want) {
        line(what, saw, true, want);
    }

    private void line(String what, Object saw, boolean wanted, Object want) {
        if (over) return;
        Map<String, Object> line = map("case", name, "step", ++step, "what", what, "saw", saw);
        if (wanted) line.put("want", want);
        print(line);
    }

    synchronized void broke(Throwable reason) {
        if (over) return;
        over = true;
        System.err.println(name + ":");
        reason.printStackTrace();
        String told = reason.getMessage() == null ? reason.toString() : reason.getMessage();
        if (reason.getCause() != null) told += ": " + reason.getCause().getMessage();
        print(map("case", name, "step", ++step, "saw", map("exception", normal(told))));
    }

    synchronized void end() {
        over = true;
        for (Connection connection : connections) {
            Thread closer = new Thread(() -> connection.abort(1000));
            closer.setDaemon(true);
            closer.start();
        }
    }

    /** Asks the orchestrator for a restart and waits until it is done. */
    static void hook(String kind) throws Exception {
        print(map(kind, true));
        if (IN.readLine() == null) throw new IllegalStateException("the orchestrator did not answer");
    }

    // ---- values

    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> made = new LinkedHashMap<>();
        for (int index = 0; index < pairs.length; index += 2) made.put((String) pairs[index], pairs[index + 1]);
        return made;
    }

    static List<Object> list(Object... values) {
        return Arrays.asList(values);
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(byte[] body) {
        return new String(body, StandardCharsets.UTF_8);
    }

    static byte[] pattern(int size) {
        byte[] body = new byte[size];
        for (int index = 0; index < size; index++) body[index] = (byte) (index * 7 + (index >> 8));
        return body;
    }

    static String normal(String text) {
        return text.replaceAll("amq\\.(gen|ctag)-[A-Za-z0-9_-]+", "amq.$1-<gen>").replaceAll("amq\\.rabbitmq\\.reply-to\\.[^' ]+", "amq.rabbitmq.reply-to.<gen>");
    }

    static Map<String, Object> fault(int code, String text, String scope) {
        return map("code", code, "text", text, "scope", scope);
    }

    static Map<String, Object> fault(int code, String text) {
        return fault(code, text, "channel");
    }

    Map<String, Object> notFound(String queue) {
        return fault(404, "NOT_FOUND - no queue '" + queue + "' in vhost '/'");
    }

    static Object describe(Throwable thrown) {
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            if (cause instanceof ShutdownSignalException signal) {
                Method reason = signal.getReason();
                if (reason instanceof AMQP.Channel.Close close) return fault(close.getReplyCode(), normal(close.getReplyText()), "channel");
                if (reason instanceof AMQP.Connection.Close close) return fault(close.getReplyCode(), normal(close.getReplyText()), "connection");
            }
        }
        return map("error", thrown.getClass().getSimpleName() + ": " + normal(String.valueOf(thrown.getMessage())));
    }

    /** A name that belongs to this program and case. */
    String n(String part) {
        return "java." + name + "." + part;
    }

    // ---- connections and channels

    ConnectionFactory factory() throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(uri);
        factory.setAutomaticRecoveryEnabled(false);
        factory.setShutdownTimeout(1000);
        return factory;
    }

    synchronized Connection keep(Connection connection) {
        connections.add(connection);
        return connection;
    }

    Connection newConnection() throws Exception {
        return keep(factory().newConnection());
    }

    /** The case's own connection, opened again when an error took it. */
    Connection connection() throws Exception {
        if (main == null || !main.isOpen()) main = newConnection();
        return main;
    }

    void useConnection(Connection connection) {
        main = connection;
    }

    Channel channel() throws Exception {
        return connection().createChannel();
    }

    Channel confirmChannel() throws Exception {
        Channel channel = channel();
        channel.confirmSelect();
        return channel;
    }

    // ---- operations

    /** Runs op on a new channel and reports what shuts the channel down, whether the call says so or it comes later. */
    void fails(String what, Operation op, Object... want) throws Exception {
        failsOn(connection(), what, op, want);
    }

    void failsOn(Connection connection, String what, Operation op, Object... want) throws Exception {
        Channel channel = connection.createChannel();
        CompletableFuture<ShutdownSignalException> end = new CompletableFuture<>();
        channel.addShutdownListener(end::complete);
        Throwable thrown = null;
        try {
            op.on(channel);
        } catch (Exception error) {
            thrown = error;
        }
        Object seen;
        try {
            ShutdownSignalException signal = end.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
            seen = describe(signal);
            // The channel hears of a connection error before the connection is marked as closed.
            if (signal.isHardError()) eventually("connection closed", () -> !connection.isOpen());
        } catch (java.util.concurrent.TimeoutException none) {
            seen = "no error, the call gave " + thrown;
        }
        if (want.length > 0) saw(what, seen, want[0]);
        else saw(what, seen);
    }

    String queue(Channel channel, String part, Object... arguments) throws Exception {
        return channel.queueDeclare(n(part), false, true, false, map(arguments)).getQueue();
    }

    static void publish(Channel channel, String exchange, String key, String body) throws Exception {
        channel.basicPublish(exchange, key, null, bytes(body));
    }

    /** Publishes on a channel in confirm mode and waits for its confirm; true is an ack. */
    static boolean sure(Channel channel, String exchange, String key, AMQP.BasicProperties properties, byte[] body) throws Exception {
        channel.basicPublish(exchange, key, properties, body);
        return channel.waitForConfirms(PATIENCE_MS);
    }

    static boolean sure(Channel channel, String exchange, String key, String body) throws Exception {
        return sure(channel, exchange, key, null, bytes(body));
    }

    static List<Object> drain(Channel channel, String queue) throws Exception {
        List<Object> bodies = new ArrayList<>();
        for (GetResponse got = channel.basicGet(queue, true); got != null; got = channel.basicGet(queue, true)) bodies.add(text(got.getBody()));
        return bodies;
    }

    /** A queue with the bodies 0, 1, … count-1. */
    String filled(String part, int count) throws Exception {
        Channel channel = channel();
        String queue = queue(channel, part);
        channel.close();
        fill(queue, 0, count);
        return queue;
    }

    void fill(String queue, int from, int to) throws Exception {
        Channel channel = confirmChannel();
        for (int index = from; index < to; index++) publish(channel, "", queue, String.valueOf(index));
        channel.waitForConfirmsOrDie(PATIENCE_MS);
        channel.close();
    }

    long ready(String queue) throws Exception {
        Channel channel = channel();
        long count = channel.messageCount(queue);
        channel.close();
        return count;
    }

    void cleanUp(List<?> queues, List<?> exchanges) throws Exception {
        Channel channel = channel();
        for (Object queue : queues) channel.queueDelete((String) queue);
        for (Object exchange : exchanges) channel.exchangeDelete((String) exchange);
        channel.close();
    }

    // ---- waiting

    static <V> V next(BlockingQueue<V> queue) throws Exception {
        V value = queue.poll(PATIENCE_MS, TimeUnit.MILLISECONDS);
        if (value == null) throw new IllegalStateException("nothing came within " + PATIENCE_MS + " ms");
        return value;
    }

    static <V> V get(CompletableFuture<V> future) throws Exception {
        return future.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
    }

    static void eventually(String what, Callable<Boolean> condition) throws Exception {
        for (long end = System.nanoTime() + PATIENCE_MS * 1_000_000; System.nanoTime() < end; Thread.sleep(5)) {
            if (condition.call()) return;
        }
        throw new IllegalStateException("never happened: " + what);
    }
}
