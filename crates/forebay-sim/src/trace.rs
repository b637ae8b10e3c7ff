//! The record of a run: a hash of everything, and on demand every line.

use crate::command::Command;
use crate::event::Event;

/// What a run has done so far.
#[derive(Debug)]
pub(crate) struct Trace {
    hash: u64,
    verbose: bool,
}

impl Trace {
    /// A record that is printed to standard error as it comes, or only hashed.
    pub(crate) fn new(verbose: bool) -> Trace {
        Trace { hash: 0xCBF2_9CE4_8422_2325, verbose }
    }

    /// FNV-1a over everything so far: equal for equal runs.
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn event(&mut self, number: u64, now_us: u64, event: &Event) {
        self.bytes(&now_us.to_le_bytes());
        if self.verbose {
            eprintln!("{number:6} {now_us:9} us  {event:?}");
        }
    }

    pub(crate) fn says(&mut self, client: usize, command: &Command) {
        if self.verbose {
            eprintln!("                        client {client} says {command:?}");
        }
    }

    pub(crate) fn processed(&mut self, client: usize, command: &Command) {
        if self.verbose {
            eprintln!("                        client {client} ─► {command:?}");
        }
    }

    pub(crate) fn observed(&mut self, client: usize, what: &dyn std::fmt::Debug) {
        if self.verbose {
            eprintln!("                        client {client} ◄─ {what:?}");
        }
    }

    pub(crate) fn note(&mut self, what: &str) {
        if self.verbose {
            eprintln!("                        {what}");
        }
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3);
        }
    }
}
