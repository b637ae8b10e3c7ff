//! A link of any length between a client and a broker on one machine: a loopback proxy with delay, jitter,
//! bandwidth, stalls and cuts, all changeable while it runs.
//!
//! ```text
//!            ┌──────────────────────────── LinkProxy ───────────────────────────┐
//!  client ──▶│ read ─▶ Direction: Lane a, Lane b, ... ─▶ one bandwidth ─▶ write │──▶ broker
//!         ◀──│ write ◀─ one bandwidth ◀─ Direction: Lane a, Lane b, ... ◀─ read │◀──
//!            └──────────────────────────────────────────────────────────────────┘
//! ```
//! `Direction` is a pure machine; the proxy is one thread around two of them.
//!
//! It ends TCP on both sides. So what the kernel knows of the path (its round trip in TCP_INFO, and the
//! handshake of a new connection) is that of loopback, and kernel buffers on both sides add to what the link
//! holds. Where the kernel's own view matters, use a `RoutedLink`, whose packets are delayed one by one.

mod conditions;
mod detour;
mod direction;
mod lane;
mod proxy;
mod routed;
#[cfg(test)]
mod tests;

pub use conditions::{Conditions, ConditionsError};
pub(crate) use detour::{address_of, url_through};
pub use proxy::LinkProxy;
pub use routed::RoutedLink;
