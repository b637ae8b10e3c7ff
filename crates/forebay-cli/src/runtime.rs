//! The runtime under the commands that are clients.

use tokio::runtime::{Builder, Runtime};

/// One thread serves the connection while the command reads, writes and decides on the main one: a pipe that
/// nobody reads holds up no heartbeat.
pub(crate) fn runtime() -> Result<Runtime, String> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start a thread: {error}"))
}
