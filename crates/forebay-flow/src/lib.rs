//! Flow control as arithmetic: how much may be in flight, who goes next, what is acknowledged when.
//!
//! | noun | answers |
//! |---|---|
//! | [`Window`] | how many messages and bytes may be published and not yet confirmed; [`Pfw`] tunes itself |
//! | [`Gate`] | who gets a permit, first come, first served, with deadlines and cancellation |
//! | [`AckCoalescer`] | which acknowledgements leave, and when |
//!
//! Deliberately absent: AMQP, sockets, clocks, threads, unseeded random numbers. Time is an argument, `now_us`:
//! microseconds of one monotonic clock. The same events at the same times give the same answers.

mod ack_coalescer;
mod amount;
mod ewma;
mod gate;
mod network_rtt;
pub mod pfw;
mod pfw_round;
pub mod window;
mod windowed_min;

pub use ack_coalescer::{AckCoalescer, BATCH_MAX, DELAY_MAX_US, Settlement, UnknownTag};
pub use amount::Amount;
pub use ewma::Ewma;
pub use gate::{Admission, Gate, WAITERS_MAX, WaiterId};
pub use pfw::{Pfw, PfwOptions};
pub use window::{Load, Phase, Sample, Window, WindowState};
pub use windowed_min::WindowedMin;
