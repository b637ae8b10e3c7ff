//! How a queue is consumed.

use std::sync::Arc;

use forebay_flow::Occupancy;
use forebay_wire::TableBuf;

/// What a consumer was asked for.
#[derive(Debug, Clone)]
pub(crate) struct How {
    pub(crate) queue: String,
    /// Tags are this and a number.
    pub(crate) tag: String,
    pub(crate) exclusive: bool,
    /// Nobody else gets messages while this consumer does, or it reads a stream. Then it is never replaced, which
    /// would give up its place, and has all its credit from the beginning.
    pub(crate) sole: bool,
    pub(crate) arguments: TableBuf,
    /// Ask a broker that can for the times at which messages passed it.
    pub(crate) marks: bool,
    /// How long a worker may keep a delivery.
    pub(crate) work_limit_us: Option<u64>,
    /// The workers, from somebody who counts them.
    pub(crate) occupancy: Option<Arc<Occupancy>>,
    /// After so long without a message the broker is asked whether some wait.
    pub(crate) stall_us: Option<u64>,
}
