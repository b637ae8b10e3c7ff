//! What the tests of the whole binary share: a broker process, messages that know what they are, and
//! peers that misbehave.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

pub mod broker;
pub mod dir;
pub mod load;
pub mod message;
pub mod model;
pub mod peer;
pub mod random;
pub mod tls;
pub mod witness;

use std::time::Duration;

/// Longer than anything here takes; a test that waits so long has failed.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What a release build does in full, a debug build (`cargo test --workspace`) does in part.
pub const fn scaled(release: u64, debug: u64) -> u64 {
    if cfg!(debug_assertions) { debug } else { release }
}
