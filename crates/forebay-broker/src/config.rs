//! What a shard is told once, when it is made.

use crate::access::User;
use crate::topology::Policy;

/// Settings of a shard. Units are in the names; defaults are RabbitMQ's where clients see them.
#[derive(Clone, Debug)]
pub struct ShardConfig {
    /// Who may log in.
    pub users: Vec<User>,
    /// Virtual hosts that exist.
    pub vhosts: Vec<String>,
    /// Those of them whose publishes and deliveries are told to `amq.rabbitmq.trace`.
    pub trace_vhosts: Vec<String>,
    /// Connections that a virtual host may have at one time; one that is not named has no limit.
    pub vhost_connections_max: Vec<(String, usize)>,
    /// What exchanges have that were declared without it.
    pub policies: Vec<Policy>,
    /// Channels a connection may have; offered in `connection.tune`. 1 to 65535.
    pub channel_max: u16,
    /// Largest frame, in bytes with its 8 bytes of head and end; offered in `connection.tune`.
    pub frame_max_bytes: u32,
    /// Heartbeat interval offered, in seconds; 0 offers none.
    pub heartbeat_s: u16,
    /// A connection that is not open by then is closed.
    pub handshake_timeout_ms: u64,
    /// How long a delivery may stay unacknowledged before its channel is closed; 0 is for ever.
    pub ack_timeout_ms: u32,
    /// Largest message body, in bytes; at most 512 MiB.
    pub message_max_bytes: u64,
    /// What messages in RAM may take together, in bytes; beyond half of it, backlogs go to disk; at
    /// all of it, publishers wait.
    pub memory_budget_bytes: u64,
    /// Connections at one time; one more is closed at once.
    pub connections_max: usize,
    /// Connections at one time that have not logged in yet; one more is closed at once, so that
    /// strangers cannot use up the connections of those who may come in.
    pub handshakes_max: usize,
    /// What spreads things in time that would otherwise happen at once.
    pub seed: u64,
    /// What makes the names and tokens of this run of the server such as nobody can guess; 128 bits nobody knows.
    pub secret: u128,
    /// Name announced in the server properties.
    pub node_name: String,
    /// When the clock of [`Shard::step`](crate::Shard::step) began, in microseconds since 1970. If it is known now, the times to live
    /// of messages that are recovered go on; else those of their own (`expiration`) begin anew, whatever is
    /// [said later](crate::Shard::set_clock).
    pub clock_began_us: Option<u64>,
}

impl Default for ShardConfig {
    fn default() -> Self {
        ShardConfig {
            users: vec![User::guest()],
            vhosts: vec!["/".to_owned()],
            trace_vhosts: Vec::new(),
            vhost_connections_max: Vec::new(),
            policies: Vec::new(),
            channel_max: 2047,
            frame_max_bytes: 131_072,
            heartbeat_s: 60,
            handshake_timeout_ms: 10_000,
            ack_timeout_ms: 1_800_000,
            message_max_bytes: 16 * 1024 * 1024,
            memory_budget_bytes: 256 * 1024 * 1024,
            connections_max: 65_536,
            handshakes_max: 10_000,
            seed: 0,
            secret: 0,
            node_name: "forebay@localhost".to_owned(),
            clock_began_us: None,
        }
    }
}
