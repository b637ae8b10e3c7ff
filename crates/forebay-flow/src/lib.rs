//! Flow control as arithmetic: how much may be in flight, who goes next, what is acknowledged when.
//!
//! | noun | answers |
//! |---|---|
//! | [`Window`] | how many messages and bytes may be published and not yet confirmed; [`Pfw`] tunes itself |
//! | [`Gate`] | who gets a permit, first come, first served, with deadlines and cancellation |
//! | [`Fixed`], [`HalfDrain`] | the same, set by hand |
//! | [`Aimd`], [`Vegas`], [`Gradient2`] | the same, as others tune it: baselines to measure against |
//! | [`AckCoalescer`] | which acknowledgements leave, and when |
//! | [`Demand`] | how many messages a consumer holds, and when it gives some back |
//! | [`Occupancy`] | how many workers there are, and how many are busy |
//! | [`Connections`] | how many connections publishers share |
//! | [`Renewal`] | when one whose route became longer is left for another |
//! | [`Workers`] | how many calls of a handler at a time, where each waits for something with a knee |
//! | [`IngressBudget`], [`Visits`] | how much a broker reads, and from whom |
//! | [`Gathering`] | how long it gathers deliveries when it is overloaded |
//! | [`explain`] | where the time of messages went, and which setting or resource took it |
//! | [`CommitCost`] | what its disk takes, if that is slow however little is written |
//! | [`FillTrial`] | which part of what publishers next door may have in flight brings anything |
//! | [`receive_buffer_bytes`] | how much may wait for it in a socket |
//! | [`Balance`] | when a queue's publishers wait for its consumers |
//! | [`Alarm`] | when a resource is so short that its users are told |
//! | [`TokenBucket`], [`max_min`] | who may have how much of a rate, of a capacity |
//!
//! Deliberately absent: AMQP, sockets, clocks, threads, unseeded random numbers. Time is an argument, `now_us`:
//! microseconds of one monotonic clock. The same events at the same times give the same answers.

mod ack_coalescer;
mod aimd;
pub mod alarm;
mod amount;
pub mod balance;
mod baseline;
mod batch_wait;
mod broker_kind;
mod carried;
mod commit_cost;
mod commit_fill;
pub mod connections;
mod crowd;
mod delay_target;
pub mod demand;
mod edge;
mod ewma;
pub mod explain;
mod fair_share;
mod fill_trial;
mod fixed;
mod former;
mod gate;
mod gathering;
mod gradient2;
mod half_drain;
mod ingress;
mod kernel_reading;
mod modest;
mod moments;
mod network_rtt;
mod occupancy;
pub mod pfw;
mod pfw_options;
mod rabbitmq_work;
mod receive_buffer;
mod recent_median;
mod renewal;
mod round;
mod slow_disk;
mod startup;
mod together;
mod token_bucket;
mod vegas;
mod visits;
pub mod window;
mod windowed_max;
mod windowed_min;
pub mod workers;

pub use ack_coalescer::{AckCoalescer, BATCH_MAX, DELAY_MAX_US, Settlement, UnknownTag};
pub use aimd::Aimd;
pub use alarm::Alarm;
pub use amount::Amount;
pub use balance::{Balance, BalanceState};
pub use baseline::{Baseline, Rule};
pub use broker_kind::BrokerKind;
pub use commit_cost::{COMMIT_TIMES, CommitCost, CommitTime};
pub use connections::{Connections, Decision, Delivered};
pub use demand::{Demand, WANTED_MAX, may_hand_back};
pub use ewma::Ewma;
pub use fair_share::max_min;
pub use fill_trial::FillTrial;
pub use fixed::Fixed;
pub use gate::{Admission, Gate, WAITERS_MAX, WaiterId};
pub use gathering::{Gathering, IDLE_LEAST_US};
pub use gradient2::Gradient2;
pub use half_drain::HalfDrain;
pub use ingress::{FAIR_VISITS, IngressBudget, VISIT_BYTES};
pub use kernel_reading::KernelReading;
pub use modest::{CommitSize, CommitWaiter};
pub use occupancy::{Occupancy, Occupied};
pub use pfw::Pfw;
pub use pfw_options::PfwOptions;
pub use receive_buffer::receive_buffer_bytes;
pub use recent_median::RecentMedian;
pub use renewal::Renewal;
pub use together::{Tally, Together};
pub use token_bucket::{NotYet, TokenBucket};
pub use vegas::Vegas;
pub use visits::{Gated, Visits};
pub use window::{Load, Pace, Phase, Sample, Window, WindowState};
pub use windowed_max::WindowedMax;
pub use windowed_min::WindowedMin;
pub use workers::Workers;
