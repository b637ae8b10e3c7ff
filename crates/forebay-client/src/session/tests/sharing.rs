//! Publishers that share a connection, and callers that share a publisher: who is served when there is not room for all.

use super::*;
use crate::session::NotAdmitted;

const NOW_US: u64 = 1_000_000;

struct Rig {
    session: Session,
    seen: Seen,
}

impl Rig {
    fn new(outgoing_bytes_max: usize) -> Rig {
        let mut session = Session::new(Options::default());
        connect_with(&mut session, outgoing_bytes_max, NOW_US);
        Rig { session, seen: Seen::default() }
    }

    fn publisher(&mut self, window: Amount, ordered: bool) -> usize {
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let window = move || Box::new(Fixed::new(window)) as Box<_>;
        let mut ledger = Ledger::new(target, "t-", Box::new(window));
        ledger.set_stall_us(None);
        ledger.set_ordered(ordered);
        let key = self.session.add_ledger(ledger, NOW_US);
        self.read();
        key
    }

    fn publish(&mut self, key: usize, body: Vec<u8>) -> Published {
        self.session.publish(key, Message::new(body), None, NOW_US)
    }

    fn waiting(&mut self, key: usize, body: Vec<u8>) -> forebay_flow::WaiterId {
        match self.publish(key, body) {
            Published::Waiting(id) => id,
            other => panic!("{other:?}"),
        }
    }

    fn read(&mut self) {
        self.seen.read(&mut self.session, NOW_US);
    }
}

#[test]
fn who_has_more_than_the_connection_carries_leaves_the_others_their_turn() {
    let mut rig = Rig::new(4_000);
    let publishers: Vec<usize> =
        (0..3).map(|_| rig.publisher(Amount::new(1_000, u64::MAX), true)).collect();
    rig.seen.bodies.clear();
    for _ in 0..100 {
        for (name, &key) in publishers.iter().enumerate() {
            assert!(matches!(rig.publish(key, vec![name as u8; 500]), Published::Admitted(_)));
        }
    }
    while rig.seen.bodies.len() < 90 {
        rig.read();
    }
    let of = |name: u8| rig.seen.bodies.iter().filter(|body| body[0] == name).count();
    assert!([0, 1, 2].iter().all(|&name| of(name) >= 20), "{} {} {}", of(0), of(1), of(2));
}

#[test]
fn when_one_that_is_too_large_gives_up_those_behind_it_pass() {
    let mut rig = Rig::new(1 << 20);
    let key = rig.publisher(Amount::new(100, 1_000), true);
    assert!(matches!(rig.publish(key, vec![1; 600]), Published::Admitted(_)));
    let large = rig.waiting(key, vec![2; 900]);
    let small = rig.waiting(key, vec![3; 100]);
    assert!(rig.session.withdraw(key, large, NOW_US).is_err(), "its message comes back");
    let cx = &mut Context::from_waker(Waker::noop());
    let passed = rig.session.ledger(key).0.poll_admitted(small, cx);
    assert!(matches!(passed, Poll::Ready(Ok(_))), "{passed:?}");
    let large = rig.waiting(key, vec![2; 900]);
    let small = rig.waiting(key, vec![3; 100]);
    rig.session.stop_waiting(key, large, NOW_US);
    let passed = rig.session.ledger(key).0.poll_admitted(small, cx);
    assert!(matches!(passed, Poll::Ready(Ok(_))), "{passed:?}");
}

#[test]
fn callers_of_a_publisher_without_order_go_elsewhere_when_the_connection_is_gone() {
    for ordered in [false, true] {
        let mut rig = Rig::new(1 << 20);
        let key = rig.publisher(Amount::new(1, u64::MAX), ordered);
        assert!(rig.session.is_serving(key) && rig.session.has_room(key));
        assert!(matches!(rig.publish(key, vec![1]), Published::Admitted(_)));
        let waits = rig.waiting(key, vec![2]);
        rig.session.lost(&Lost::Io("cut".into()), NOW_US);
        assert!(!rig.session.is_serving(key) && !rig.session.has_room(key));
        let cx = &mut Context::from_waker(Waker::noop());
        let told = rig.session.ledger(key).0.poll_admitted(waits, cx);
        match told {
            Poll::Ready(Err(NotAdmitted::Elsewhere(message))) if !ordered => {
                assert_eq!(message.body(), [2]);
            }
            Poll::Pending if ordered => {}
            other => panic!("ordered {ordered}: {other:?}"),
        }
        // Who comes now waits here, whatever the order: there may be no other connection.
        let waits = rig.waiting(key, vec![3]);
        assert!(rig.session.ledger(key).0.poll_admitted(waits, cx).is_pending());
    }
}
