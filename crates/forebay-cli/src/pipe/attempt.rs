//! One attempt at a message, and what is said of it when it fails.

use std::time::{Duration, Instant};

use forebay::Received;
use forebay::pipeline::explain::printable;

use super::program::Program;
use crate::explained;

/// Whoever is dropped so shortly before its time is over was dropped for that: an attempt is timed from a moment before it runs.
const EARLY: Duration = Duration::from_millis(100);

/// Does the `work` of `program` for a message, and says on standard error if it fails, or is dropped as it takes longer than `limit`.
pub(super) async fn attempt<T>(
    message: &Received,
    program: &Program,
    limit: Option<Duration>,
    work: impl Future<Output = Result<T, String>>,
) -> Result<T, String> {
    let mut unfinished =
        Unfinished { message, program, limit, begun: Instant::now(), finished: false };
    let outcome = work.await;
    unfinished.finished = true;
    outcome.inspect_err(|why| say_of(message, why))
}

struct Unfinished<'a> {
    message: &'a Received,
    program: &'a Program,
    limit: Option<Duration>,
    begun: Instant,
    finished: bool,
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        let over = |limit: &Duration| self.begun.elapsed() + EARLY >= *limit;
        if let Some(limit) = self.limit.filter(over).filter(|_| !self.finished) {
            let (name, limit_s) = (self.program.name(), limit.as_secs());
            say_of(self.message, &format!("'{name}' took longer than {limit_s} s and was stopped"));
        }
    }
}

/// Says something of a message, with its message-id if it has one.
pub(super) fn say_of(message: &Received, what: &str) {
    match explained::name(message) {
        Some(name) => super::say(&format!("message {}: {what}", printable(&name))),
        None => super::say(what),
    }
}
