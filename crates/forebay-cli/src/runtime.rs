//! The runtime under the commands that are clients.

use std::ops::Deref;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// How long what still runs at the end may take: the system may look for the address of a host for half a minute, and nobody wants to
/// know it any more.
const END_PATIENCE: Duration = Duration::from_secs(1);

/// Dropped, it ends whatever it runs.
pub(crate) struct Ending(Option<Runtime>);

/// One thread serves the connection while the command reads, writes and decides on the main one: a pipe that
/// nobody reads holds up no heartbeat.
pub(crate) fn runtime() -> Result<Ending, String> {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start a thread: {error}"))?;
    Ok(Ending(Some(runtime)))
}

impl Deref for Ending {
    type Target = Runtime;

    fn deref(&self) -> &Runtime {
        self.0.as_ref().expect("it is there until it is dropped")
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(END_PATIENCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;
    use std::thread;

    use super::*;

    #[test]
    fn what_blocks_a_thread_does_not_hold_up_the_end() {
        let (release, released) = sync_channel::<()>(1);
        let (begun, begins) = sync_channel(1);
        let runtime = runtime().unwrap();
        // As the search for an address does.
        runtime.spawn_blocking(move || {
            begun.send(()).unwrap();
            released.recv()
        });
        begins.recv().unwrap();
        let (ended, ends) = sync_channel(1);
        thread::spawn(move || {
            drop(runtime);
            ended.send(()).unwrap();
        });
        ends.recv_timeout(Duration::from_secs(20)).expect("it ends");
        drop(release);
    }
}
