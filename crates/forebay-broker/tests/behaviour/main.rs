//! What a broker does, seen from its clients' side, without sockets, threads or a clock.

mod connections;
mod consuming;
mod publishing;
mod queues;
mod rig;
