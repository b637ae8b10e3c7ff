//! The broker's process: the production machine and store over a disk in memory, and the requests that
//! its lanes have in flight.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_broker::{Input, Shard, ShardConfig};
use forebay_store::{
    Lane, MemDisk, OpenError, Options, Request, Store, StoreFailed, open, perform,
};

use crate::random::Random;

/// A running broker.
pub(crate) struct Broker {
    pub(crate) shard: Shard,
    /// What each lane has, in the order of [`Lane::ALL`].
    lanes: [VecDeque<Request>; Lane::ALL.len()],
}

impl Broker {
    /// Starts on what the disk holds.
    pub(crate) fn start(
        disk: &Arc<MemDisk>,
        options: &Options,
        config: ShardConfig,
        in_memory: bool,
    ) -> Result<Broker, OpenError> {
        if in_memory {
            return Shard::new(config, Store::in_memory(), None)
                .map(Broker::new)
                .map_err(|error| damaged(&error.to_string()));
        }
        let (store, recovered) = open(disk.clone(), options.clone())?;
        Shard::new(config, store, Some(recovered))
            .map(Broker::new)
            .map_err(|error| damaged(&error.to_string()))
    }

    fn new(shard: Shard) -> Broker {
        Broker { shard, lanes: Lane::ALL.map(|_| VecDeque::new()) }
    }

    /// Takes the requests that there are, as the shell does at the end of a turn.
    pub(crate) fn take_requests(&mut self, now_us: u64) {
        while let Some(request) = self.shard.poll_disk(now_us) {
            let lane = request.lane();
            let requests = self.requests(lane);
            requests.push_back(request);
            debug_assert!(requests.len() <= lane.requests_max(), "too many requests on a lane");
        }
    }

    pub(crate) fn is_busy(&self, lane: Lane) -> bool {
        !self.lanes[lane as usize].is_empty()
    }

    fn requests(&mut self, lane: Lane) -> &mut VecDeque<Request> {
        &mut self.lanes[lane as usize]
    }

    /// Carries out the first that a lane has in flight.
    pub(crate) fn complete(
        &mut self,
        lane: Lane,
        disk: &MemDisk,
        now_us: u64,
    ) -> Result<(), StoreFailed> {
        let Some(request) = self.requests(lane).pop_front() else { return Ok(()) };
        let completion = perform(disk, request);
        if completion.is_final() {
            self.requests(lane).clear();
        }
        self.shard.step(now_us, Input::Disk(completion))
    }

    /// The process is gone: of what a lane had in flight nothing happened, all of it, or a part.
    pub(crate) fn die(&mut self, disk: &MemDisk, random: &mut Random) {
        for lane in Lane::ALL {
            // One after the other: the next is begun when all of the one before was done.
            while let Some(request) = self.requests(lane).pop_front() {
                let goes_on = match random.below(3) {
                    0 => false,
                    1 => !perform(disk, request).is_final(),
                    _ => {
                        disk.stop_after(random.below(4));
                        drop(perform(disk, request));
                        false
                    }
                };
                if !goes_on {
                    self.requests(lane).clear();
                }
            }
        }
    }
}

fn damaged(what: &str) -> OpenError {
    OpenError::Damaged { file: "store".to_owned(), offset: 0, what: what.to_owned() }
}
