//! What the kernel measures of a TCP connection, for the windows of publishers and the credit of consumers.

/// What the kernel tells of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelReading {
    /// The smoothed round trip, in microseconds; above 0.
    pub rtt_us: u64,
    /// The least round trip of some minutes, in microseconds; 0: the kernel does not say.
    pub least_rtt_us: u64,
    /// Bytes that wait for the link, or for TCP for its sake: not sent yet though the peer has had room all the time since
    /// the reading before.
    pub unsent_bytes: u64,
}
