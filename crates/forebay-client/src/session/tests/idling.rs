//! Callers who wait until what was published so far has its outcome, while others go on publishing.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Wake;

use forebay_flow::WaiterId;
use forebay_wire::channel;

use super::*;
use crate::session::Idler;

/// Counts how often it was rung.
#[derive(Default)]
struct Bell(AtomicU32);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Rig {
    session: Session,
    key: usize,
    bell: Arc<Bell>,
}

impl Rig {
    /// A publisher with this window on channel 1.
    fn new(window_messages: u32) -> Rig {
        let mut session = Session::new(Options::default());
        connect(&mut session, 1);
        let target = Target { exchange: String::new(), routing_key: "q".into(), mandatory: true };
        let window = move || Box::new(Fixed::new(Amount::new(window_messages, u64::MAX))) as Box<_>;
        let key = session.add_ledger(Ledger::new(target, "t-", Box::new(window)), 1);
        Rig { session, key, bell: Arc::default() }
    }

    fn publish(&mut self) -> Published {
        self.session.publish(self.key, Message::new("m"), None, 1)
    }

    fn admitted(&mut self) {
        let published = self.publish();
        assert!(matches!(published, Published::Admitted(_)), "{published:?}");
    }

    fn waiting(&mut self) -> WaiterId {
        match self.publish() {
            Published::Waiting(id) => id,
            other => panic!("{other:?}"),
        }
    }

    fn confirm(&mut self, delivery_tag: u64) {
        feed(&mut self.session, &bytes(1, &basic::Ack { delivery_tag, multiple: false }), 1);
    }

    fn begin(&mut self) -> Idler {
        self.session.ledger(self.key).0.begin_idling()
    }

    fn is_idle(&mut self, idler: Idler) -> bool {
        let waker = Waker::from(self.bell.clone());
        let cx = Context::from_waker(&waker);
        self.session.ledger(self.key).0.poll_idle(idler, &cx).is_ready()
    }

    /// How often the bell was rung since this was last asked.
    fn rings(&mut self) -> u32 {
        std::mem::take(&mut self.session.wakeups).perform();
        self.bell.0.swap(0, Ordering::Relaxed)
    }
}

#[test]
fn what_follows_is_not_waited_for() {
    let mut rig = Rig::new(10);
    rig.admitted();
    rig.admitted();
    let idler = rig.begin();
    rig.admitted();
    let later = rig.begin();
    assert!(!rig.is_idle(idler) && !rig.is_idle(later));
    rig.confirm(2);
    rig.confirm(3);
    rig.admitted();
    assert_eq!(rig.rings(), 0);
    rig.confirm(1);
    assert_eq!(rig.rings(), 2);
    assert!(rig.is_idle(idler) && rig.is_idle(later));
}

#[test]
fn whoever_waited_to_be_admitted_before_is_waited_for() {
    let mut rig = Rig::new(1);
    rig.admitted();
    let gives_up = rig.waiting();
    rig.waiting();
    let idler = rig.begin();
    let follows = rig.waiting();
    rig.confirm(1);
    assert!(!rig.is_idle(idler), "one of them was admitted just now");
    rig.session.stop_waiting(rig.key, gives_up, 1);
    rig.confirm(2);
    assert!(!rig.is_idle(idler), "and now the other one");
    rig.confirm(3);
    assert_eq!(rig.rings(), 1);
    assert!(rig.is_idle(idler), "the last one came later");
    rig.session.stop_waiting(rig.key, follows, 1);
}

#[test]
fn callers_who_give_up_are_waited_for_no_longer_although_others_come() {
    let mut rig = Rig::new(10);
    feed(&mut rig.session, &bytes(0, &connection::Blocked::default()), 1);
    let gives_up = rig.waiting();
    let idler = rig.begin();
    rig.waiting();
    assert!(!rig.is_idle(idler));
    rig.session.stop_waiting(rig.key, gives_up, 1);
    assert_eq!(rig.rings(), 1);
    assert!(rig.is_idle(idler));
}

#[test]
fn an_end_of_the_channel_or_the_connection_is_heard_of() {
    let close = bytes(1, &channel::Close { reply_code: 404, ..Default::default() });
    let ends: [fn(&mut Session, &[u8]); 2] = [
        |session, close| feed(session, close, 1),
        |session, _| session.give_up(&Lost::Io("cut".into())),
    ];
    for end in ends {
        let mut rig = Rig::new(1);
        rig.admitted();
        let idler = rig.begin();
        rig.waiting();
        assert!(!rig.is_idle(idler));
        end(&mut rig.session, &close);
        assert_eq!(rig.rings(), 1);
        assert!(rig.is_idle(idler));
    }
}

#[test]
fn who_waits_no_longer_leaves_nothing_behind() {
    let mut rig = Rig::new(10);
    rig.admitted();
    for _ in 0..3 {
        let idler = rig.begin();
        assert!(!rig.is_idle(idler));
        assert_eq!(Arc::strong_count(&rig.bell), 2);
        rig.session.ledger(rig.key).0.stop_idling(idler);
        assert_eq!(Arc::strong_count(&rig.bell), 1);
    }
}
