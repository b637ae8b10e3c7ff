//! Metrics as Prometheus reads them.
//!
//! Names that start with `rabbitmq_` mean what they mean in RabbitMQ's own exporter, so that charts of
//! its totals work; the rest starts with `forebay_`. The set is fixed: no series per queue or
//! connection, so that its size does not depend on the clients.

use crate::mailbox::Snapshot;
use forebay_broker::Latencies;
use std::fmt::{Display, Write};

/// The whole page for one snapshot, in Prometheus' text format 0.0.4.
pub fn text(snapshot: &Snapshot) -> String {
    let mut page = Page(String::with_capacity(8 * 1024));
    let (broker, shell) = (&snapshot.broker, &snapshot.shell);
    let (count, store) = (&broker.counters, &broker.store);

    page.info(
        "rabbitmq_build_info",
        "What runs here.",
        &[("product_name", "Forebay"), ("product_version", env!("CARGO_PKG_VERSION"))],
    );
    page.gauge("rabbitmq_connections", "Connections open.", broker.connections);
    page.gauge("rabbitmq_channels", "Channels open.", broker.channels);
    page.gauge("rabbitmq_consumers", "Consumers.", broker.consumers);
    page.gauge("rabbitmq_queues", "Queues.", broker.queue_count);
    page.gauge("rabbitmq_queue_messages_ready", "Messages to be delivered.", broker.ready);
    page.gauge(
        "rabbitmq_queue_messages_unacked",
        "Messages delivered and not acknowledged.",
        broker.unacked,
    );
    page.gauge(
        "rabbitmq_queue_messages",
        "Messages ready and unacknowledged.",
        broker.ready + broker.unacked,
    );
    page.counter(
        "rabbitmq_connections_opened_total",
        "Connections accepted.",
        count.connections_opened,
    );
    page.counter("rabbitmq_global_messages_received_total", "Messages published.", count.published);
    page.counter(
        "rabbitmq_global_messages_confirmed_total",
        "Publishes confirmed.",
        count.confirmed,
    );
    page.counter(
        "rabbitmq_global_messages_delivered_total",
        "Messages delivered, redeliveries included.",
        count.delivered,
    );
    page.counter(
        "rabbitmq_global_messages_acknowledged_total",
        "Deliveries acknowledged or rejected for good.",
        count.acknowledged,
    );
    page.counter(
        "rabbitmq_global_messages_unroutable_returned_total",
        "Messages given back to their publisher.",
        count.returned,
    );
    page.counter(
        "rabbitmq_global_messages_unroutable_dropped_total",
        "Messages that no queue took and nobody wanted back.",
        count.unroutable.saturating_sub(count.returned),
    );

    page.gauge("forebay_exchanges", "Exchanges, predeclared ones included.", broker.exchanges);
    page.gauge(
        "forebay_message_memory_bytes",
        "Memory of messages, in bytes.",
        broker.memory_bytes,
    );
    page.gauge(
        "forebay_message_memory_budget_bytes",
        "The memory budget of messages, in bytes.",
        broker.memory_budget_bytes,
    );
    page.gauge(
        "forebay_message_memory_max_bytes",
        "What messages may take now before publishers wait, in bytes.",
        broker.memory_max_bytes,
    );
    page.gauge(
        "forebay_outgoing_buffer_bytes",
        "Buffers of bytes to be sent, in bytes.",
        broker.outgoing_bytes,
    );
    page.gauge(
        "forebay_held_bytes",
        "Received bytes that wait behind publishes for which there is no room.",
        broker.held_bytes,
    );
    page.gauge(
        "forebay_receive_buffer_bytes",
        "What the receive buffers of publishers' sockets were asked to be, in bytes.",
        broker.receive_bytes,
    );
    page.gauge(
        "forebay_queues_holding",
        "Queues whose publishers wait for their consumers (flow mode balance).",
        broker.queues_holding,
    );
    page.gauge(
        "forebay_publishers_blocked",
        "1 while publishers are blocked for memory, disk space or a stalled log.",
        u8::from(broker.alarm.is_some()),
    );
    page.gauge(
        "forebay_window_part",
        "Of what self-tuned publishers next door may have in flight, the part that the broker asks for now; 1: it does not.",
        f64::from(broker.window_part_permille) / 1e3,
    );
    page.counter(
        "forebay_connection_errors_total",
        "Connections that were told an error.",
        count.connection_errors,
    );
    page.counter(
        "forebay_channel_errors_total",
        "Channels that were told an error.",
        count.channel_errors,
    );
    page.counter(
        "forebay_handshake_timeouts_total",
        "Connections that were not open in time.",
        count.handshake_timeouts,
    );
    page.counter(
        "forebay_handshakes_refused_total",
        "Connections closed at once because half of connections_max had not logged in.",
        count.handshakes_refused,
    );
    page.counter(
        "forebay_heartbeat_timeouts_total",
        "Connections that missed their heartbeats.",
        count.heartbeat_timeouts,
    );
    page.counter(
        "forebay_ack_timeouts_total",
        "Channels closed because a delivery was not acknowledged in time.",
        count.ack_timeouts,
    );
    page.counter(
        "forebay_messages_expired_total",
        "Messages that expired in a queue.",
        count.expired,
    );
    page.counter(
        "forebay_publishes_refused_total",
        "Publishes that a full queue did not take.",
        count.refused,
    );
    page.counter(
        "forebay_messages_dropped_total",
        "Messages that left a queue because it was longer than it may be.",
        count.dropped,
    );
    page.counter(
        "forebay_messages_dead_lettered_total",
        "Messages that dead-letter exchanges took to a queue.",
        count.dead_lettered,
    );
    page.counter(
        "forebay_queues_expired_total",
        "Queues that nobody used for as long as they allow.",
        count.queues_expired,
    );
    page.counter(
        "forebay_replies_dropped_total",
        "Direct replies dropped because their requester did not read.",
        count.replies_dropped,
    );
    page.counter(
        "forebay_traces_dropped_total",
        "Traces of the firehose dropped because memory was short.",
        count.traces_dropped,
    );
    page.counter(
        "forebay_undecodable_messages_total",
        "Stored messages that could not be understood.",
        count.undecodable,
    );

    page.head(
        "forebay_wait_seconds_total",
        "Time that connections and queues were held, by gate.",
        "counter",
    );
    for gate in &broker.waits.gates {
        let seconds = gate.waited_us as f64 / 1e6;
        page.sample("forebay_wait_seconds_total", &gate_labels(gate.gate), seconds);
    }
    page.head("forebay_waiting", "Connections and queues that are held, by gate.", "gauge");
    for gate in &broker.waits.gates {
        page.sample("forebay_waiting", &gate_labels(gate.gate), gate.waiting);
    }
    page.histogram(
        "forebay_sync_wait_seconds",
        "From the first publish of a batch until it is synced, for each channel and batch.",
        &broker.sync_latencies,
    );

    page.gauge("forebay_log_bytes", "Size of the log, in bytes.", store.log_bytes);
    page.gauge("forebay_log_segments", "Segments of the log.", store.segments);
    page.gauge("forebay_log_spare_segments", "Spare segments ready for use.", store.spares);
    page.gauge("forebay_runs", "Run files alive.", store.runs);
    page.gauge(
        "forebay_commit_duration_us",
        "Moving average of a commit's time on disk, in microseconds.",
        store.flush_us,
    );
    page.counter("forebay_commits_total", "Batches committed.", store.batches);
    page.counter(
        "forebay_log_written_bytes_total",
        "Bytes written to the log.",
        store.log_written_bytes,
    );
    page.counter(
        "forebay_run_written_bytes_total",
        "Bytes written to run files.",
        store.run_written_bytes,
    );

    page.gauge(
        "forebay_sockets",
        "Connections open, handshakes and closing ones included.",
        shell.connections_open,
    );
    page.counter(
        "forebay_connections_refused_total",
        "Connections closed at once because connections_max was reached.",
        shell.connections_refused,
    );
    page.counter(
        "forebay_received_bytes_total",
        "Bytes read from connections.",
        shell.received_bytes,
    );
    page.counter("forebay_sent_bytes_total", "Bytes written to connections.", shell.sent_bytes);
    page.counter("forebay_turns_total", "Turns of the shard's loop.", shell.turns);
    page.gauge("forebay_uptime_seconds", "Time since the start.", shell.uptime_us / 1_000_000);
    page.0
}

struct Page(String);

impl Page {
    fn line(&mut self, name: &str, help: &str, kind: &str, labels: &str, value: impl Display) {
        self.head(name, help, kind);
        self.sample(name, labels, value);
    }

    // Writing to a string cannot fail.
    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    /// Bounds at every second power of two, from 63 µs to a minute.
    fn histogram(&mut self, name: &str, help: &str, latencies: &Latencies) {
        self.head(name, help, "histogram");
        let bucket = format!("{name}_bucket");
        for power in (6..=26).step_by(2) {
            let upto_us = (1u64 << power) - 1;
            let label = format!("{{le=\"{}\"}}", upto_us as f64 / 1e6);
            self.sample(&bucket, &label, latencies.count_upto(upto_us));
        }
        let count = latencies.count_upto(u64::MAX);
        self.sample(&bucket, "{le=\"+Inf\"}", count);
        self.sample(&format!("{name}_sum"), "", latencies.sum_us() as f64 / 1e6);
        self.sample(&format!("{name}_count"), "", count);
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.line(name, help, "gauge", "", value);
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Display) {
        self.line(name, help, "counter", "", value);
    }

    /// Label values here are ours and need no escapes.
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) {
        let labels: Vec<String> =
            labels.iter().map(|(name, value)| format!("{name}=\"{value}\"")).collect();
        self.line(name, help, "gauge", &format!("{{{}}}", labels.join(",")), 1);
    }
}

fn gate_labels(gate: forebay_broker::Gate) -> String {
    format!("{{gate=\"{}\",waits_for=\"{}\"}}", gate.name(), gate.waits_for())
}
