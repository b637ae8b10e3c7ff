//! A thread that does one disk request after the other.
//!
//! There are three: the log's, on whose latency confirms wait, that of reads, for which consumers wait, and the
//! background's, for run files and spare segments. The shard never has more with each than [`StoreLane::requests_max`]: two
//! with the log's, so that it goes on before the shard has heard of the first one, and one with the others.

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
        let start = |name, lane: StoreLane| {
            Lane::start(name, lane.requests_max(), disk.clone(), mailbox.clone())
        };
        Ok(Lanes {
            log: start("forebay-log", StoreLane::Log)?,
            read: start("forebay-read", StoreLane::Read)?,
            background: start("forebay-disk", StoreLane::Background)?,
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
    fn start(
        name: &str,
        requests_max: usize,
        disk: Arc<dyn Disk>,
        mailbox: Arc<Mailbox>,
    ) -> io::Result<Lane> {
        let (requests, inbox) = sync_channel::<Request>(requests_max);
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _told = TellDeath(mailbox.clone());
            let mut is_over = false;
            while let Ok(request) = inbox.recv() {
                // The shard is about to hear of it, and may hand over one more before.
                if is_over {
                    continue;
                }
                let completion = perform(&*disk, request);
                is_over = completion.is_final();
                mailbox.post(Mail::Completed(completion));
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
            // That a lane panicked has been told already.
            let _ = thread.join();
        }
    }
}

/// Tells the shard of a panic: it may have nothing more to submit, and wait for a completion that never comes.
struct TellDeath(Arc<Mailbox>);

impl Drop for TellDeath {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.post(Mail::LaneDied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::Poller;
    use forebay_store::fault_disk::Call;
    use forebay_store::{MemDisk, Options, Store, open};

    /// What the log's lane is to do next.
    fn commit(store: &mut Store, disk: &MemDisk) -> Request {
        store.add_waiter();
        while let Some(request) = store.poll(0) {
            if request.lane() == StoreLane::Log {
                return request;
            }
            store.complete(0, perform(disk, request)).unwrap();
        }
        panic!("nothing is to be committed")
    }

    #[test]
    fn behind_a_failed_commit_the_lane_writes_nothing() {
        let disk = Arc::new(MemDisk::new());
        let (mut store, _) = open(disk.clone(), Options::default()).unwrap();
        store.publish(&[(1, 1)], b"first");
        let first = commit(&mut store, &disk);
        let body = vec![7; 2 << 20];
        store.publish(&[(1, 2)], &body);
        let second = commit(&mut store, &disk);
        disk.fail(Call::Sync, 0, io::ErrorKind::Other);

        let mailbox = Arc::new(Mailbox::new(Poller::new().unwrap().waker()));
        let lanes = Lanes::start(&(disk.clone() as Arc<dyn Disk>), &mailbox).unwrap();
        assert!(lanes.submit(first) && lanes.submit(second));
        drop(lanes); // when they are done
        let mut letters = Vec::new();
        mailbox.take(&mut letters);
        assert!(matches!(&letters[..], [Mail::Completed(first)] if first.is_final()));
        let written = |name: &String| disk.bytes(name).is_some_and(|file| file.ends_with(&[7; 9]));
        assert!(!disk.list().unwrap().iter().any(written));
    }
}
