//! A route that becomes longer: whom the session tells so, and what it lets in while another connection is opened.

use forebay_flow::{Fixed, Load, Sample, Window, WindowState};

use super::*;

const NEAR: KernelReading =
    KernelReading { rtt_us: 100, least_rtt_us: 100, unsent_bytes: 0, same_machine: false };
const FAR: KernelReading = KernelReading { rtt_us: 10_000, ..NEAR };

/// Lets in one message more with each confirm, and takes 10 ms for a longer route.
struct Growing(u32);

impl Window for Growing {
    fn sent(&mut self, _: u64, _: Load) -> bool {
        false
    }

    fn confirmed(&mut self, _: u64, _: Sample, _: Load) {
        self.0 += 1;
    }

    fn rejected(&mut self, _: u64, _: Load) {}

    fn network(&mut self, _: u64, reading: Option<KernelReading>) -> bool {
        reading == Some(FAR)
    }

    fn blocked(&mut self, _: u64) {}

    fn unblocked(&mut self, _: u64) {}

    fn window(&self) -> Amount {
        Amount::new(self.0, u64::MAX)
    }

    fn state(&self) -> WindowState {
        Fixed::new(self.window()).state()
    }
}

struct Rig {
    session: Session,
    seen: Seen,
    key: usize,
    confirmed: u64,
}

impl Rig {
    fn new() -> Rig {
        let mut session = Session::new(Options::default());
        connect(&mut session, 0);
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: false };
        let window = || Box::new(Growing(2)) as Box<_>;
        let key = session.add_ledger(Ledger::new(target, "t-", Box::new(window)), 0);
        let mut seen = Seen::default();
        seen.read(&mut session, 0);
        Rig { session, seen, key, confirmed: 0 }
    }

    fn publish(&mut self, count: usize) {
        for _ in 0..count {
            self.session.publish(self.key, Message::new("m"), None, 0);
        }
        self.seen.read(&mut self.session, 0);
    }

    fn confirm_one(&mut self) {
        self.confirmed += 1;
        let ack = basic::Ack { delivery_tag: self.confirmed, multiple: false };
        feed(&mut self.session, &bytes(self.seen.channel, &ack), 0);
        self.seen.read(&mut self.session, 0);
    }

    fn in_flight(&mut self) -> u32 {
        self.session.ledger(self.key).0.metrics().in_flight_messages
    }

    fn told(&mut self, reading: KernelReading) -> bool {
        self.session.network(0, Some(reading));
        self.session.take_longer_route()
    }
}

#[test]
fn a_longer_route_is_told_once_and_only_of_publishers_who_wait() {
    let mut rig = Rig::new();
    rig.publish(2);
    assert!(!rig.told(FAR), "both have room");
    rig.publish(1);
    assert!(!rig.told(NEAR));
    assert!(!rig.told(FAR), "nobody has had to wait since the reading before");
    rig.publish(1);
    assert!(rig.told(FAR));
    assert!(!rig.session.take_longer_route());
}

#[test]
fn another_connection_has_the_route_that_it_has() {
    let mut rig = Rig::new();
    rig.publish(3);
    rig.session.network(0, Some(FAR));
    rig.session.lost(&Lost::Io("cut".into()), 0);
    connect(&mut rig.session, 0);
    assert!(!rig.session.take_longer_route());
}

#[test]
fn a_held_window_lets_in_what_it_did_until_it_is_let_go() {
    let mut rig = Rig::new();
    rig.publish(10);
    rig.confirm_one();
    assert_eq!(rig.in_flight(), 3);
    rig.session.hold_windows(true);
    rig.confirm_one();
    rig.confirm_one();
    assert_eq!(rig.in_flight(), 3, "it would let in five");
    rig.session.hold_windows(false);
    rig.confirm_one();
    assert_eq!(rig.in_flight(), 6);
}
