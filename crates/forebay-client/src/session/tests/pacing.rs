//! A window that has a pace: its callers pass when the clock says so, without a word from the broker.

use forebay_flow::{Fixed, Load, Pace, Sample, Window, WindowState};

use super::*;

/// A window of 100 messages, of which one may leave each 5 ms.
struct Paced(Fixed);

impl Window for Paced {
    fn sent(&mut self, _: u64, _: Load) -> bool {
        false
    }

    fn confirmed(&mut self, _: u64, _: Sample, _: Load) {}

    fn rejected(&mut self, _: u64, _: Load) {}

    fn blocked(&mut self, now_us: u64) {
        self.0.blocked(now_us);
    }

    fn unblocked(&mut self, now_us: u64) {
        self.0.unblocked(now_us);
    }

    fn window(&self) -> Amount {
        self.0.window()
    }

    fn state(&self) -> WindowState {
        self.0.state()
    }

    fn pace(&self) -> Option<Pace> {
        Some(Pace { messages_per_s: 200, burst_messages: 1, grain_us: 1_000 })
    }
}

struct Rig {
    session: Session,
    seen: Seen,
    key: usize,
}

impl Rig {
    fn new(outgoing_bytes_max: usize) -> Rig {
        let mut session = Session::new(Options::default());
        connect_with(&mut session, outgoing_bytes_max, 1_000_000);
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let window = || Box::new(Paced(Fixed::new(Amount::new(100, u64::MAX)))) as Box<_>;
        let mut ledger = Ledger::new(target, "t-", Box::new(window));
        ledger.set_stall_us(None);
        let key = session.add_ledger(ledger, 1_000_000);
        let mut seen = Seen::default();
        seen.read(&mut session, 1_000_000);
        Rig { session, seen, key }
    }

    fn publish(&mut self, body: &'static str) -> Published {
        self.session.publish(self.key, Message::new(body), None, 1_000_000)
    }

    fn in_flight(&mut self) -> u32 {
        self.session.ledger(self.key).0.metrics().in_flight_messages
    }
}

#[test]
fn who_waits_for_the_pace_passes_in_time() {
    let mut rig = Rig::new(1 << 20);
    assert!(matches!(rig.publish("first"), Published::Admitted(_)));
    assert!(matches!(rig.publish("second"), Published::Waiting(_)));
    assert!(matches!(rig.publish("third"), Published::Waiting(_)));
    for (now_us, in_flight) in [(1_005_000, 2), (1_010_000, 3)] {
        assert_eq!(rig.session.next_tick_us(), Some(now_us));
        rig.session.tick(now_us - 1).unwrap();
        assert_eq!(rig.in_flight(), in_flight - 1);
        rig.session.tick(now_us).unwrap();
        assert_eq!(rig.in_flight(), in_flight);
    }
    assert_eq!(rig.session.next_tick_us(), None, "nobody waits");
    rig.seen.read(&mut rig.session, 1_010_000);
    assert_eq!(rig.seen.bodies, [&b"first"[..], b"second", b"third"]);
}

#[test]
fn while_the_send_buffer_is_full_the_clock_is_not_asked_for_the_pace() {
    let mut rig = Rig::new(1);
    assert!(matches!(rig.publish("written"), Published::Admitted(_)));
    assert!(matches!(rig.publish("second"), Published::Waiting(_)));
    assert!(matches!(rig.publish("third"), Published::Waiting(_)));
    rig.session.tick(1_005_000).unwrap();
    assert_eq!(rig.in_flight(), 2, "the second has its permit, and waits for room");
    assert_eq!(rig.session.next_tick_us(), None);
    rig.seen.read(&mut rig.session, 1_006_000);
    rig.seen.read(&mut rig.session, 1_006_000);
    assert_eq!(rig.session.next_tick_us(), Some(1_010_000));
}
