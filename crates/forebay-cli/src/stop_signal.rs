//! SIGINT and SIGTERM as a question: "shall we stop?". A second one exits at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Exit code after a second signal, as a shell reports an interrupted program.
const INTERRUPTED: i32 = 130;

/// A signal that comes so soon after the first is the same one: `timeout` sends each to the program and to its group, and so does a
/// shell script that passes on what the terminal has sent to all.
pub(crate) const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// Whether the user asked us to stop.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<StopSignal> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = stop.clone();
        std::thread::spawn(move || {
            let mut first: Option<Instant> = None;
            for _ in signals.forever() {
                match first {
                    None => {
                        first = Some(Instant::now());
                        asked.store(true, Ordering::Relaxed);
                    }
                    Some(at) if at.elapsed() < SAME_SIGNAL => {}
                    Some(_) => std::process::exit(INTERRUPTED),
                }
            }
        });
        Ok(StopSignal(stop))
    }

    /// Whether a signal came.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
