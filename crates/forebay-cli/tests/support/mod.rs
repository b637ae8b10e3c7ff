//! What the tests of the whole binary share: a broker process, messages that know what they are, and
//! peers that misbehave.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod bench;
pub mod broker;
pub mod dir;
pub mod load;
pub mod message;
pub mod model;
pub mod peer;
pub mod random;
pub mod tls;
pub mod witness;

use std::env;
use std::ffi::OsString;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

/// Longer than anything here takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for a child's end, for [`PATIENCE`] at most; `None`: it has not ended.
pub fn ended(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match child.try_wait().expect("a child can be waited for") {
            Some(status) => return Some(status),
            // No way in std to wait for a child with a timeout.
            None if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
            None => return None,
        }
    }
}

/// The binary under test: the one that was built with the tests, or another one, which is the release build for
/// those that ask much of the machine (`make crash`).
pub fn forebay() -> OsString {
    env::var_os(OTHER).unwrap_or_else(|| env!("CARGO_BIN_EXE_forebay").into())
}

/// The path of another binary.
const OTHER: &str = "FOREBAY_BINARY";

/// What is asked of a release build in full is asked of a debug build in part.
pub fn scaled(release: u64, debug: u64) -> u64 {
    match env::var_os(OTHER) {
        None if cfg!(debug_assertions) => debug,
        _ => release,
    }
}
