//! A thread that does one disk request at a time.
//!
//! There are three: the log's, on whose latency confirms wait, that of reads, for which consumers wait, and the
//! background's, for run files and spare segments. The shard never has more than one request with each, so a
//! lane holds no queue.

use crate::mailbox::{Mail, Mailbox};
use forebay_store::{Disk, Lane as StoreLane, Request, perform};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// All lanes of a store.
pub(crate) struct Lanes {
    log: Lane,
    read: Lane,
    background: Lane,
}

impl Lanes {
    pub(crate) fn start(disk: &Arc<dyn Disk>, mailbox: &Arc<Mailbox>) -> io::Result<Lanes> {
        let start = |name| Lane::start(name, disk.clone(), mailbox.clone());
        Ok(Lanes {
            log: start("forebay-log")?,
            read: start("forebay-read")?,
            background: start("forebay-disk")?,
        })
    }

    /// Hands a request to its lane. False only when the lane's thread has died.
    #[must_use]
    pub(crate) fn submit(&self, request: Request) -> bool {
        let lane = match request.lane() {
            StoreLane::Log => &self.log,
            StoreLane::Read => &self.read,
            StoreLane::Background => &self.background,
        };
        lane.submit(request)
    }
}

/// The shard's handle to one lane.
struct Lane {
    /// `None` once the lane is told to end.
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    fn start(name: &str, disk: Arc<dyn Disk>, mailbox: Arc<Mailbox>) -> io::Result<Lane> {
        let (requests, inbox) = sync_channel::<Request>(1);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(request) = inbox.recv() {
                mailbox.post(Mail::Completed(perform(&*disk, request)));
            }
        })?;
        Ok(Lane { requests: Some(requests), thread: Some(thread) })
    }

    fn submit(&self, request: Request) -> bool {
        self.requests.as_ref().is_some_and(|requests| requests.send(request).is_ok())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // A lane that panicked has already been noticed by `submit`.
            let _ = thread.join();
        }
    }
}
