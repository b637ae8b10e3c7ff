//! SIGINT, SIGTERM and SIGHUP as a question: "shall we stop?". A second one exits at once.

use std::fs;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tokio::time::timeout;

/// Exit code after a second signal, as a shell reports an interrupted program.
const INTERRUPTED: i32 = 130;

/// A signal that comes so soon after the first is the same one: `timeout` sends each to the program and to its group, and so does a
/// shell script that passes on what the terminal has sent to all.
pub(crate) const SAME_SIGNAL: Duration = Duration::from_millis(500);

/// What is said when a signal came before there was anything to end.
pub(crate) const NOT_ANSWERED: &str = "a signal came before the broker had answered";

/// How soon a signal is noticed by who waits for something else.
const NOTICE: Duration = Duration::from_millis(50);

/// Whether the user asked us to stop.
#[derive(Clone, Debug)]
pub(crate) struct StopSignal(Arc<AtomicBool>);

impl StopSignal {
    /// Listens from now on.
    pub(crate) fn listen() -> io::Result<StopSignal> {
        StopSignal::listen_with(|exit| exit())
    }

    /// The same; on a second signal `at_last` is called, which calls what it is given to exit.
    pub(crate) fn listen_with(
        at_last: impl FnOnce(fn()) + Send + 'static,
    ) -> io::Result<StopSignal> {
        let mut signals = stop_signals()?;
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
                    Some(_) => return at_last(|| std::process::exit(INTERRUPTED)),
                }
            }
        });
        Ok(StopSignal(stop))
    }

    /// Whether a signal came.
    pub(crate) fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// What `work` gives; `None` if a signal comes before: for whatever waits for a broker, which may say nothing for minutes.
    pub(crate) async fn or<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = pin!(work);
        loop {
            match timeout(NOTICE, &mut work).await {
                Ok(done) => return Some(done),
                Err(_) if self.came() => return None,
                Err(_) => {}
            }
        }
    }

    /// The same for work that blocks: a thread does it, and is left behind if a signal comes before.
    pub(crate) fn or_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (told, done) = sync_channel(1);
        std::thread::spawn(move || {
            // Nobody may be waiting any more.
            let _ = told.send(work());
        });
        loop {
            match done.recv_timeout(NOTICE) {
                Err(RecvTimeoutError::Timeout) if !self.came() => {}
                answer => return answer.ok(),
            }
        }
    }
}

/// Says after the first signal what is waited for, if it is anything, and how not to wait. `what` is a word for one and
/// a word for several.
pub(crate) fn say_waiting(patience: Duration, count: u64, what: [&str; 2]) {
    if let Some(words) = waiting(patience, count, what) {
        say!("forebay: {words}");
    }
}

fn waiting(patience: Duration, count: u64, [one, several]: [&str; 2]) -> Option<String> {
    if patience.is_zero() || count == 0 {
        return None;
    }
    let what = if count == 1 { one } else { several };
    let patience_s = patience.as_secs();
    Some(format!("waiting up to {patience_s} s for {count} {what}; a second signal ends at once"))
}

/// Those that ask us to stop: SIGHUP, too, if it does not find us under `nohup`.
pub(crate) fn stop_signals() -> io::Result<Signals> {
    let signals = Signals::new([SIGINT, SIGTERM])?;
    if !hangups_are_ignored() {
        signals.add_signal(SIGHUP)?;
    }
    Ok(signals)
}

/// Whether we were started under `nohup`, to go on when the terminal goes.
fn hangups_are_ignored() -> bool {
    // Nowhere else is it to be read without unsafe code; a system that does not tell keeps SIGHUP as it is.
    fs::read_to_string("/proc/self/status").map_or(true, |status| ignores(&status, SIGHUP))
}

/// Whether the `SigIgn` of a `/proc/PID/status`, where the lowest bit is signal 1, has this one.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
    mask.is_none_or(|mask| mask >> (signal - 1) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_where_nothing_is_waited_for() {
        let confirms = ["confirm", "confirms"];
        let patience = Duration::from_secs(5);
        assert_eq!(waiting(patience, 0, confirms), None);
        assert_eq!(waiting(Duration::ZERO, 1, confirms), None);
        let words = "waiting up to 5 s for 2 confirms; a second signal ends at once";
        assert_eq!(waiting(patience, 2, confirms).as_deref(), Some(words));
    }

    #[test]
    fn what_is_ignored_is_read_from_its_bit() {
        let status = "Name:\tforebay\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGTERM) && !ignores(&status.replace("1001", "1000"), SIGHUP));
        assert!(ignores("Name:\tforebay\n", SIGHUP), "it is not told");
    }
}
