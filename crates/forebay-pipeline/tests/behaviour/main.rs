//! What pipelines do, each file one part of it. One program, since each would be built with a pipeline of its own.

mod asking;
mod batching;
mod blocking;
mod ending;
mod explaining;
mod histories;
mod joining;
mod middleware;
mod needing;
mod outcomes;
mod postponing;
mod running;
mod tuning;
mod unsettled;
mod virtual_time;
mod voiding;
mod waiting;
