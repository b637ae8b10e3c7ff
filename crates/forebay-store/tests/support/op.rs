//! What is done to a store, as data: a generator of any kind makes a list of these.

#[derive(Clone, Debug)]
pub enum Op {
    Publish { queue: u64, fan_out: bool, bytes: usize, fill: u8 },
    PublishTransient { queue: u64, bytes: usize },
    Settle { queue: u64, pick: u16, streak: u8 },
    Atomic { queue: u64, count: u8 },
    Put { key: u8, bytes: usize },
    Delete { key: u8 },
    Spill { queue: u64, skip: u8, count: u8 },
    ReadRun { pick: u8 },
    PurgeRun { pick: u8 },
    Forget { queue: u64 },
    Pump { times: u8 },
    Hold,
    Release { pick: u8 },
    Kill,
    PowerLoss { seed: u64 },
    StopThen { calls: u8, seed: Option<u64>, during_recovery: Option<u8> },
    FailSync { skip: u8, calls: u8, seed: u64, during_recovery: Option<u8> },
    CleanStop,
}
