//! Where a publisher's messages go.

/// Where a publisher sends.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) exchange: String,
    pub(crate) routing_key: String,
    pub(crate) mandatory: bool,
}
