//! Which tap's deliveries can still be settled, for those who ask without the connection's lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// There is none. A connection does not open so many.
const NONE: u64 = u64::MAX;

/// The number of a consumer's tap.
#[derive(Debug, Clone)]
pub(crate) struct PresentTap(Arc<AtomicU64>);

impl PresentTap {
    pub(super) fn none() -> PresentTap {
        PresentTap(Arc::new(AtomicU64::new(NONE)))
    }

    pub(super) fn set(&self, number: Option<u64>) {
        self.0.store(number.unwrap_or(NONE), Ordering::Relaxed);
    }

    /// Whether it is this one. Whoever is told so may still be too late.
    pub(crate) fn is(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) == number
    }
}
