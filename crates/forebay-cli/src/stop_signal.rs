//! SIGINT and SIGTERM as a question: "shall we stop?". A second one exits at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

/// Exit code after a second signal, as a shell reports an interrupted program.
const INTERRUPTED: i32 = 130;

/// Whether the user asked us to stop.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<StopSignal> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order the first signal finds the flag unset and only sets it.
            flag::register_conditional_shutdown(signal, INTERRUPTED, stop.clone())?;
            flag::register(signal, stop.clone())?;
        }
        Ok(StopSignal(stop))
    }

    /// Whether a signal came.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
