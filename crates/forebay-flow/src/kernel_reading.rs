//! What the kernel measures of a TCP connection, for the windows of publishers and the credit of consumers.

/// What the kernel tells of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelReading {
    /// The smoothed round trip (Linux `TCP_INFO.tcpi_rtt`), in microseconds; 0: there is none.
    pub rtt_us: u64,
    /// The least round trip of some minutes (`tcpi_min_rtt`), in microseconds; 0: the kernel does not say.
    pub least_rtt_us: u64,
    /// Bytes that wait for the link, or for TCP for its sake: not sent yet though the peer has had room all the time since
    /// the reading before.
    pub unsent_bytes: u64,
    /// Whether the peer is on this machine, to which no route becomes longer, whatever the round trip.
    pub same_machine: bool,
}

impl KernelReading {
    /// A round trip, and nothing else.
    #[must_use]
    pub fn of(rtt_us: u64) -> KernelReading {
        KernelReading { rtt_us, ..KernelReading::default() }
    }
}
