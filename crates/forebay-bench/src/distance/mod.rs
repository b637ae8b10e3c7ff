//! Whether the window that tunes itself finds, over links of any length, what a person with time would find.
//!
//! ```text
//!   Grid      cells (RTT, bandwidth, publishers, size) x windows (fixed ones, tuned) x repetitions
//!     └─ Load      publishers that never wait for anything but their window ──▶ Tally
//!          ├─ Way          loopback, an emulated link through a proxy, or one of IP packets
//!          ├─ Broker       `forebay serve` of our own, perhaps on a SlowDisk, or any at a URL
//!          └─ Queue        emptied by a process of its own
//!   Verdict   best fixed window, knee, ratios with intervals, grade
//!   Enqueue   callers on one connection, each awaiting each confirm, beside the serial path
//!   Steps     a link that changes and a broker that stalls: when does the rate settle?
//!   Rivals    another client doing the same on the same broker (feature `lapin`)
//! ```

mod broker;
mod cell;
mod enqueue;
mod grid;
mod load;
#[cfg(feature = "lapin")]
mod rivals;
mod setting;
mod steps;
mod tally;
mod verdict;
mod way;

pub(crate) use enqueue::Caller;
pub use enqueue::Enqueue;
pub use grid::Grid;
#[cfg(feature = "lapin")]
pub use rivals::Rivals;
pub use steps::Steps;
