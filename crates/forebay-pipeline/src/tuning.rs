//! The number of workers that a stage finds out for itself, if it does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use forebay_flow::Workers;

/// Taken before the locks of the source and the floor.
pub(crate) struct Tuning {
    workers: Mutex<Option<Workers>>,
    /// Whether there is something to lock; stages with a fixed number do not ask the clock.
    on: AtomicBool,
}

impl Tuning {
    pub(crate) fn new(workers: Option<Workers>) -> Tuning {
        Tuning { on: AtomicBool::new(workers.is_some()), workers: Mutex::new(workers) }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Option<Workers>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins anew, with `locked`, or is fixed from now on.
    pub(crate) fn replace(
        &self,
        locked: &mut MutexGuard<'_, Option<Workers>>,
        workers: Option<Workers>,
    ) {
        self.on.store(workers.is_some(), Ordering::Relaxed);
        **locked = workers;
    }
}
