//! The store against a simple model, on a disk that breaks.
//!
//! What recovery finds must be exactly the state after some whole number of batches: all that were
//! reported durable, and perhaps some that were on their way. So one check covers lost messages, returned
//! messages, wrong bytes, wrong topology and half batches.

mod support;

use forebay_store::Durability;
use proptest::prelude::*;
use support::op::Op;
use support::state::QUEUES;
use support::world::{options, run};

fn op() -> impl Strategy<Value = Op> {
    let queue = 0..QUEUES;
    prop_oneof![
        12 => (queue.clone(), any::<bool>(), 0usize..900, any::<u8>())
            .prop_map(|(queue, fan_out, bytes, fill)| Op::Publish { queue, fan_out, bytes, fill }),
        1 => (queue.clone(), 3000usize..20_000, any::<u8>())
            .prop_map(|(queue, bytes, fill)| Op::Publish { queue, fan_out: false, bytes, fill }),
        3 => (queue.clone(), 0usize..300)
            .prop_map(|(queue, bytes)| Op::PublishTransient { queue, bytes }),
        10 => (queue.clone(), any::<u16>(), 1u8..6)
            .prop_map(|(queue, pick, streak)| Op::Settle { queue, pick, streak }),
        2 => (queue.clone(), 1u8..6).prop_map(|(queue, count)| Op::Atomic { queue, count }),
        3 => (0u8..8, 0usize..400).prop_map(|(key, bytes)| Op::Put { key, bytes }),
        1 => (0u8..8).prop_map(|key| Op::Delete { key }),
        3 => (queue.clone(), 0u8..4, 1u8..12)
            .prop_map(|(queue, skip, count)| Op::Spill { queue, skip, count }),
        2 => any::<u8>().prop_map(|pick| Op::ReadRun { pick }),
        1 => any::<u8>().prop_map(|pick| Op::PurgeRun { pick }),
        1 => queue.prop_map(|queue| Op::Forget { queue }),
        8 => (1u8..12).prop_map(|times| Op::Pump { times }),
        6 => Just(Op::Hold),
        4 => any::<u8>().prop_map(|pick| Op::Release { pick }),
        1 => Just(Op::Kill),
        1 => any::<u64>().prop_map(|seed| Op::PowerLoss { seed }),
        2 => (0u8..20, any::<Option<u64>>(), any::<Option<u8>>())
            .prop_map(|(calls, seed, during_recovery)| Op::StopThen { calls, seed, during_recovery }),
        2 => (0u8..6, 0u8..20, any::<u64>(), any::<Option<u8>>()).prop_map(
            |(skip, calls, seed, during_recovery)| Op::FailSync { skip, calls, seed, during_recovery }
        ),
        1 => Just(Op::CleanStop),
    ]
}

/// 128 cases, or as many as `PROPTEST_CASES` says. A failure prints its minimal input.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig {
        cases: cases.unwrap_or(128),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_was_durable_survives_every_crash(
        ops in prop::collection::vec(op(), 1..160),
        small in any::<bool>(),
    ) {
        run(&ops, options(small, Durability::Always));
    }

    #[test]
    fn without_syncing_a_kill_loses_nothing_and_a_power_loss_whole_batches_only(
        ops in prop::collection::vec(op(), 1..160),
        interval in any::<bool>(),
    ) {
        let durability =
            if interval { Durability::Interval { ms: 20 } } else { Durability::Os };
        run(&ops, options(true, durability));
    }
}
