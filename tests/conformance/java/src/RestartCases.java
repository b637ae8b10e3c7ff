import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.MessageProperties;
import com.rabbitmq.client.Recoverable;
import com.rabbitmq.client.RecoveryListener;
import com.rabbitmq.client.ShutdownSignalException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;

final class RestartCases {
    static final List<Main.Scenario> ALL = List.of(
        Main.Scenario.alone("restart.recovery", RestartCases::recovery),
        Main.Scenario.alone("restart.recovery-after-kill", RestartCases::recoveryAfterKill));

    private RestartCases() {}

    static void recovery(Case t) throws Exception {
        recover(t, true);
    }

    static void recoveryAfterKill(Case t) throws Exception {
        recover(t, false);
    }

    /** The library's automatic recovery: connection, channels, prefetch, topology, consumers, confirms. */
    private static void recover(Case t, boolean orderly) throws Exception {
        Connection cleaner = t.newConnection();
        Channel cleaning = cleaner.createChannel();
        cleaning.queueDelete(t.n("durable"));
        cleaning.exchangeDelete(t.n("x"));
        cleaner.close();
        ConnectionFactory factory = t.factory();
        factory.setAutomaticRecoveryEnabled(true);
        factory.setTopologyRecoveryEnabled(true);
        factory.setNetworkRecoveryInterval(200);
        Connection connection = t.keep(factory.newConnection());
        CompletableFuture<ShutdownSignalException> end = new CompletableFuture<>();
        connection.addShutdownListener(end::complete);
        CountDownLatch recovered = new CountDownLatch(1);
        ((Recoverable) connection).addRecoveryListener(new RecoveryListener() {
            @Override
            public void handleRecovery(Recoverable recoverable) {
                recovered.countDown();
            }

            @Override
            public void handleRecoveryStarted(Recoverable recoverable) {}
        });
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        channel.basicQos(5);
        channel.exchangeDeclare(t.n("x"), "topic", true);
        channel.queueDeclare(t.n("durable"), true, false, false, null);
        channel.queueBind(t.n("durable"), t.n("x"), "durable.#");
        String named = channel.queueDeclare().getQueue();
        channel.queueBind(named, t.n("x"), "named.#");
        Inbox inbox = Inbox.on(channel, named, true);
        channel.basicPublish(t.n("x"), "durable.one", MessageProperties.PERSISTENT_TEXT_PLAIN, Case.bytes("kept"));
        channel.basicPublish(t.n("x"), "named.one", null, Case.bytes("before"));
        channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
        t.saw("before", inbox.take(1), Case.list("before"));
        // A consumer of the durable queue holds its message unacked over the restart.
        Channel holding = connection.createChannel();
        Inbox held = Inbox.on(holding, t.n("durable"), false);
        long tag = held.next().getEnvelope().getDeliveryTag();
        Case.hook(orderly ? "restart" : "kill");
        if (orderly) {
            t.saw("told why", Case.describe(Case.get(end)), Case.fault(320, "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'", "connection"));
        }
        t.saw("recovered", recovered.await(40, TimeUnit.SECONDS), true);
        channel.basicPublish(t.n("x"), "named.two", null, Case.bytes("after"));
        channel.waitForConfirmsOrDie(Case.PATIENCE_MS);
        t.saw("the queue named by the server has a new name, its binding and consumer are back", inbox.take(1), Case.list("after"));
        // A kill so soon after the declaration may cost RabbitMQ the queue, which writes declarations some seconds later.
        if (orderly) {
            // The library drops acks of deliveries from before.
            holding.basicAck(tag, false);
            var again = held.next();
            t.saw("the unacked message comes again, marked", Case.list(Case.text(again.getBody()), again.getEnvelope().isRedeliver()), Case.list("kept", true));
            holding.basicAck(again.getEnvelope().getDeliveryTag(), false);
            Case.eventually("acked", () -> channel.messageCount(t.n("durable")) == 0);
        }
        holding.close();
        int left = channel.queueDelete(t.n("durable")).getMessageCount();
        if (orderly) t.saw("nothing is left", left, 0);
        channel.exchangeDelete(t.n("x"));
        connection.close();
    }
}
