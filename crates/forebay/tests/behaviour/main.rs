//! The broker in a program of one's own, and pipelines on it. One program, since each would be built with all of Forebay; `tracing.rs` is
//! another, since what collects spans is one of the process.

mod embedded;
mod explaining;
mod hoarding;
mod pipeline;
