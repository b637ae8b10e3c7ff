//! Transactions: what they may hold, and what is refused before a commit.

use forebay_broker::{Admission, ConnectionId};
use forebay_wire::{Properties, TableBuf, Value, basic, channel, tx};

use crate::rig::{Rig, SMALL_BYTES, declare, short};

/// What all open transactions may hold of the memory of [`Rig::small`].
const SHARE_BYTES: u64 = SMALL_BYTES / 4;

/// A client in a transaction.
fn transacting(rig: &mut Rig) -> ConnectionId {
    let id = rig.client();
    rig.method(id, 1, &tx::Select::default());
    assert_eq!(rig.trace(id), ["1 tx.select-ok"]);
    id
}

/// Publishes until the channel is closed; what it was told, and how many messages were held then.
fn publish_until_refused(rig: &mut Rig, id: ConnectionId) -> (Vec<String>, usize) {
    for held in 0..200 {
        rig.publish(id, "q", &[7; 1000], true);
        let told = rig.trace(id);
        if !told.is_empty() {
            return (told, held);
        }
        assert_eq!(rig.shard.held_bytes(id), 0, "held for ever: nobody gives memory back");
    }
    panic!("nothing is refused");
}

fn ready(rig: &mut Rig) -> u64 {
    rig.settle();
    rig.shard.status().ready
}

#[test]
fn who_puts_all_memory_into_a_transaction_is_refused_and_nobody_waits_for_ever() {
    let mut rig = Rig::small();
    let other = rig.client();
    rig.method(other, 1, &declare("q", false));
    rig.trace(other);
    let id = transacting(&mut rig);
    let (told, held) = publish_until_refused(&mut rig, id);
    let refusal = format!(
        "1 channel.close 406 PRECONDITION_FAILED - transaction holds more than {SHARE_BYTES} bytes \
         together with all others that are open"
    );
    assert_eq!(told, [refusal]);
    assert!(held as u64 * 1000 > SHARE_BYTES / 2, "{held}");
    assert_eq!(rig.shard.admission(other), Admission::Open);
    assert_eq!((ready(&mut rig), rig.shard.status().memory_bytes), (0, 0));
}

#[test]
fn what_transactions_hold_together_is_bounded_and_each_can_commit() {
    let mut rig = Rig::small();
    let first = transacting(&mut rig);
    rig.method(first, 1, &declare("q", false));
    rig.trace(first);
    for _ in 0..15 {
        rig.publish(first, "q", &[7; 1000], true);
    }
    let second = transacting(&mut rig);
    let (told, held) = publish_until_refused(&mut rig, second);
    assert!(told[0].starts_with("1 channel.close 406"), "{told:?}");
    assert!((1..15).contains(&held), "{held}");
    rig.method(first, 1, &tx::Commit::default());
    assert_eq!(rig.trace(first), ["1 tx.commit-ok"]);
    assert_eq!(ready(&mut rig), 15);
}

#[test]
fn what_a_transaction_held_is_free_for_the_next_one() {
    let mut rig = Rig::small();
    let id = transacting(&mut rig);
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    for round in 0..30 {
        for _ in 0..15 {
            rig.publish(id, "q", &[7; 1000], false);
        }
        match round % 3 {
            0 => rig.method(id, 1, &tx::Rollback::default()),
            1 => {
                rig.method(id, 1, &tx::Commit::default());
                let queue = short("q");
                rig.method(id, 1, &forebay_wire::queue::Purge { queue, ..Default::default() });
            }
            _ => {
                rig.method(id, 1, &channel::Close::default());
                rig.method(id, 1, &channel::Open::default());
                rig.method(id, 1, &tx::Select::default());
            }
        }
        let told = rig.trace(id);
        assert!(!told.iter().any(|line| line.contains("406")), "{round}: {told:?}");
        assert_eq!(ready(&mut rig), 0);
        assert_eq!(rig.shard.status().memory_bytes, 0, "{round}");
    }
}

#[test]
fn malformed_extra_keys_are_refused_at_the_publish_and_nothing_is_committed() {
    let mut rig = Rig::new();
    let id = transacting(&mut rig);
    rig.method(id, 1, &declare("q", false));
    rig.trace(id);
    for name in ["CC", "BCC"] {
        let headers = TableBuf::new().with(name, Value::LongStr(b"q"));
        let malformed = Properties { headers: Some(headers.as_table()), ..Properties::default() };
        rig.publish(id, "q", b"sound", false);
        rig.publish_with(id, "", "q", false, &malformed, b"malformed");
        let told = rig.trace(id);
        assert!(told[0].starts_with("1 channel.close 406"), "{told:?}");
        // What was sent before the refusal was read.
        rig.method(id, 1, &tx::Commit::default());
        rig.method(id, 1, &channel::CloseOk::default());
        rig.method(id, 1, &channel::Open::default());
        rig.method(id, 1, &tx::Select::default());
        let get = basic::Get { queue: short("q"), ..basic::Get::default() };
        rig.method(id, 1, &get);
        assert_eq!(rig.trace(id), ["1 channel.open-ok", "1 tx.select-ok", "1 basic.get-empty"]);
    }
}
