//! Bytes from a fuzzer as operations on a store.

use forebay_store::{Durability, Options};

use super::op::Op;
use super::state::QUEUES;
use super::world::options;

/// Operations of one input; more add time and nothing new.
const OPS_MAX: usize = 200;

/// The first byte chooses options, then four bytes are one operation.
pub fn decode(data: &[u8]) -> Option<(Options, Vec<Op>)> {
    let (&first, rest) = data.split_first()?;
    let durability = match first % 8 {
        6 => Durability::Interval { ms: 20 },
        7 => Durability::Os,
        _ => Durability::Always,
    };
    let ops = rest.chunks_exact(4).take(OPS_MAX);
    let ops = ops.map(|bytes| operation([bytes[0], bytes[1], bytes[2], bytes[3]])).collect();
    Some((options(first & 128 == 0, durability), ops))
}

fn operation([kind, a, b, c]: [u8; 4]) -> Op {
    let queue = u64::from(a) % QUEUES;
    let seed = u64::from_le_bytes([kind, a, b, c, 0, 0, 0, 0]);
    match kind % 32 {
        0..=5 => Op::Publish { queue, fan_out: a & 64 != 0, bytes: usize::from(b) * 3, fill: c },
        6 => Op::Publish { queue, fan_out: false, bytes: 3000 + usize::from(b) * 60, fill: c },
        7 => Op::PublishTransient { queue, bytes: b.into() },
        8..=11 => Op::Settle { queue, pick: b.into(), streak: c % 6 + 1 },
        12 => Op::Atomic { queue, count: b % 6 + 1 },
        13..=14 => Op::Put { key: a % 8, bytes: usize::from(b) * 2 },
        15 => Op::Delete { key: a % 8 },
        16..=17 => Op::Spill { queue, skip: b % 4, count: c % 12 + 1 },
        18 => Op::ReadRun { pick: b },
        19 => Op::PurgeRun { pick: b },
        20 => Op::Forget { queue },
        21..=23 => Op::Pump { times: b % 12 + 1 },
        24..=25 => Op::Hold,
        26..=27 => Op::Release { pick: b },
        28 => Op::Kill,
        29 => Op::PowerLoss { seed },
        30 if b & 12 == 12 => Op::FailSync {
            skip: b % 4,
            calls: a % 20,
            seed,
            during_recovery: (b & 16 == 0).then_some(c),
        },
        30 => Op::StopThen {
            calls: a % 20,
            seed: (b & 1 == 0).then_some(seed),
            during_recovery: (b & 2 == 0).then_some(c),
        },
        _ => Op::CleanStop,
    }
}
