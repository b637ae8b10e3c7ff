//! The tokio shell: streams, one task a connection, and the lock between it and the callers.

mod broker_tally;
mod dial;
mod driver;
mod kept_full;
mod kernel_rtt;
mod link;
mod stream;

pub(crate) use dial::Dialer;
pub use dial::StreamFuture;
pub(crate) use driver::Driver;
pub(crate) use kept_full::KeptFull;
pub use kernel_rtt::KernelRtt;
pub use link::HAPPENINGS_KEPT;
pub(crate) use link::{Link, random_u64};
pub use stream::ByteStream;
