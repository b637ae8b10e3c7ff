import java.nio.file.FileSystems;
import java.nio.file.Path;
import java.nio.file.PathMatcher;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;

/** Drives an AMQP 0-9-1 broker with the unmodified com.rabbitmq:amqp-client and prints one JSON line for each thing it saw. */
public final class Main {
    interface Script {
        void run(Case t) throws Exception;
    }

    /** beside: waits for the clock, so it runs beside the others; alone: stops the broker, so it runs last. */
    record Scenario(String name, Script script, boolean beside, boolean alone) {
        static Scenario of(String name, Script script) {
            return new Scenario(name, script, false, false);
        }

        static Scenario beside(String name, Script script) {
            return new Scenario(name, script, true, false);
        }

        static Scenario alone(String name, Script script) {
            return new Scenario(name, script, false, true);
        }
    }

    static void run(Scenario scenario, String uri) {
        Case one = new Case(scenario.name(), uri);
        Thread thread = new Thread(() -> {
            try {
                scenario.script().run(one);
            } catch (Throwable reason) {
                one.broke(reason);
            }
        }, scenario.name());
        thread.setDaemon(true);
        thread.start();
        try {
            long limitS = scenario.alone() ? 75 : 25;
            thread.join(TimeUnit.SECONDS.toMillis(limitS));
            if (thread.isAlive()) {
                StackTraceElement[] where = thread.getStackTrace();
                IllegalStateException late = new IllegalStateException("case not finished within " + limitS + " s");
                late.setStackTrace(where);
                one.broke(late);
            }
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
        one.end();
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length < 1) {
            System.err.println("usage: Main AMQP-URI [CASE-PATTERN]");
            System.exit(2);
        }
        PathMatcher wanted = FileSystems.getDefault().getPathMatcher("glob:" + (arguments.length > 1 ? arguments[1] : "*"));
        List<Scenario> chosen = new ArrayList<>();
        for (List<Scenario> part : List.of(ConnectionCases.ALL, ExchangeCases.ALL, QueueCases.ALL, PublishCases.ALL, ConsumeCases.ALL, RestartCases.ALL)) {
            for (Scenario scenario : part) if (wanted.matches(Path.of(scenario.name()))) chosen.add(scenario);
        }
        List<Thread> besides = new ArrayList<>();
        for (Scenario scenario : chosen) {
            if (!scenario.beside()) continue;
            Thread thread = new Thread(() -> run(scenario, arguments[0]));
            thread.start();
            besides.add(thread);
        }
        for (Scenario scenario : chosen) if (!scenario.beside() && !scenario.alone()) run(scenario, arguments[0]);
        for (Thread thread : besides) thread.join();
        for (Scenario scenario : chosen) if (scenario.alone()) run(scenario, arguments[0]);
        System.exit(0);
    }
}
