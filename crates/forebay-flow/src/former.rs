//! What a window was when its route became longer, to go back to if another connection refutes that.

use crate::edge::Edge;
use crate::startup::Startup;

/// See the module's documentation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Former {
    /// In messages.
    pub(crate) window: f64,
    pub(crate) velocity: f64,
    pub(crate) startup: Option<Startup>,
    pub(crate) edge: Edge,
}
