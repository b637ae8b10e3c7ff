//! The broker's process: the production machine and store over a disk in memory, and the requests that
//! its lanes have in flight.

use std::sync::Arc;

use forebay_broker::{Input, Shard, ShardConfig};
use forebay_store::{
    Lane, MemDisk, OpenError, Options, Request, Store, StoreFailed, open, perform,
};

use crate::random::Random;

/// A running broker.
pub(crate) struct Broker {
    pub(crate) shard: Shard,
    log: Option<Request>,
    read: Option<Request>,
    background: Option<Request>,
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
        Broker { shard, log: None, read: None, background: None }
    }

    /// Takes the requests that there are, as the shell does at the end of a turn.
    pub(crate) fn take_requests(&mut self, now_us: u64) {
        while let Some(request) = self.shard.poll_disk(now_us) {
            let slot = match request.lane() {
                Lane::Log => &mut self.log,
                Lane::Read => &mut self.read,
                Lane::Background => &mut self.background,
            };
            debug_assert!(slot.is_none(), "two requests on one lane");
            *slot = Some(request);
        }
    }

    pub(crate) fn is_busy(&self, lane: Lane) -> bool {
        match lane {
            Lane::Log => self.log.is_some(),
            Lane::Read => self.read.is_some(),
            Lane::Background => self.background.is_some(),
        }
    }

    /// Carries out what a lane has in flight.
    pub(crate) fn complete(
        &mut self,
        lane: Lane,
        disk: &MemDisk,
        now_us: u64,
    ) -> Result<(), StoreFailed> {
        let request = match lane {
            Lane::Log => self.log.take(),
            Lane::Read => self.read.take(),
            Lane::Background => self.background.take(),
        };
        match request {
            Some(request) => self.shard.step(now_us, Input::Disk(perform(disk, request))),
            None => Ok(()),
        }
    }

    /// The process is gone: of each request in flight nothing happened, all of it, or a part.
    pub(crate) fn die(&mut self, disk: &MemDisk, random: &mut Random) {
        let in_flight = [self.log.take(), self.read.take(), self.background.take()];
        for request in in_flight.into_iter().flatten() {
            match random.below(3) {
                0 => {}
                1 => drop(perform(disk, request)),
                _ => {
                    disk.stop_after(random.below(4));
                    drop(perform(disk, request));
                }
            }
        }
    }
}

fn damaged(what: &str) -> OpenError {
    OpenError::Damaged { file: "store".to_owned(), offset: 0, what: what.to_owned() }
}
