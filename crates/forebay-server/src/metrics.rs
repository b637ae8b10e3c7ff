//! Prometheus text of a [`Snapshot`].
use crate::mailbox::Snapshot;
/// text
pub fn text(_s: &Snapshot) -> String { String::new() }
