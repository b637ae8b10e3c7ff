//! What is known of a broker beforehand, from what it says of itself: which waits are worth their while there.

/// How a broker spends its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BrokerKind {
    /// Nobody knows.
    Unknown,
    /// It reads at most so many bytes of a connection before it goes on to the next one, and what such a visit costs is
    /// shared by them ([`FAIR_VISITS`](crate::FAIR_VISITS)).
    FairVisits {
        /// At most so many in a visit.
        bytes: u64,
    },
    /// RabbitMQ: a row of processes with mailboxes between them. What all have in flight together makes it quick, and hardly how
    /// much of that is of one publisher.
    RabbitMq,
}

impl BrokerKind {
    /// Bytes of a visit; 0 where they are not known.
    #[must_use]
    pub fn visit_bytes(self) -> u64 {
        match self {
            BrokerKind::FairVisits { bytes } => bytes,
            BrokerKind::Unknown | BrokerKind::RabbitMq => 0,
        }
    }
}
