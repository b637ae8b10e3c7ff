//! A thread that does one disk request at a time.
//!
//! There are two: the log's, on whose latency confirms wait, and the background's, for run files and
//! spare segments. The shard never has more than one request with either, so a lane holds no queue.

use crate::mailbox::{Mail, Mailbox};
use forebay_store::{Disk, Request, perform};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;

/// The shard's handle to one lane.
pub(crate) struct Lane {
    /// `None` once the lane is told to end.
    requests: Option<SyncSender<Request>>,
    thread: Option<JoinHandle<()>>,
}

impl Lane {
    pub(crate) fn start(
        name: &str,
        disk: Arc<dyn Disk>,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Lane> {
        let (requests, inbox) = sync_channel::<Request>(1);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            while let Ok(request) = inbox.recv() {
                mailbox.post(Mail::Completed(perform(&*disk, request)));
            }
        })?;
        Ok(Lane { requests: Some(requests), thread: Some(thread) })
    }

    /// Hands a request over. False only when the lane's thread has died.
    #[must_use]
    pub(crate) fn submit(&self, request: Request) -> bool {
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
