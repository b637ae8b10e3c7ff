import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Delivery;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.ShutdownSignalException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/** A consumer that keeps what it gets, and notes each call the library makes. */
final class Inbox extends DefaultConsumer {
    final BlockingQueue<Delivery> deliveries = new LinkedBlockingQueue<>();
    String tag;
    final BlockingQueue<String> events = new LinkedBlockingQueue<>();

    Inbox(Channel channel) {
        super(channel);
    }

    static Inbox on(Channel channel, String queue, boolean autoAck) throws Exception {
        Inbox inbox = new Inbox(channel);
        inbox.tag = channel.basicConsume(queue, autoAck, inbox);
        return inbox;
    }

    @Override
    public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body) {
        deliveries.add(new Delivery(envelope, properties, body));
    }

    @Override
    public void handleCancelOk(String tag) {
        events.add("cancel-ok");
    }

    @Override
    public void handleCancel(String tag) {
        events.add("cancel");
    }

    @Override
    public void handleRecoverOk(String tag) {
        events.add("recover-ok");
    }

    @Override
    public void handleShutdownSignal(String tag, ShutdownSignalException signal) {
        events.add("shutdown " + (signal.isInitiatedByApplication() ? "by us" : "by the broker"));
    }

    Delivery next() throws Exception {
        return Case.next(deliveries);
    }

    List<Object> take(int count) throws Exception {
        List<Object> bodies = new ArrayList<>();
        for (int index = 0; index < count; index++) bodies.add(Case.text(next().getBody()));
        return bodies;
    }

    boolean quiet() throws Exception {
        Thread.sleep(Case.QUIET_MS);
        return deliveries.isEmpty();
    }
}
