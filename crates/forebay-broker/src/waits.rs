//! Who waits for whom, and for how long: the time each gate held somebody, counted as it happens.
//!
//! ```text
//!   connection ─ turn, stop ─► broker            queue ─ credit, delivery, no_consumer ─► its consumers
//!       │ batch, sync, unconfirmed, space ─► disk   │ run ─► disk
//!       │ memory ─► memory                          └ room ─► memory
//!       │ balance ─► the consumers of the queues it publishes to
//!       └ outgoing, socket ─► its own client
//! ```
//! A wait is an edge: its waiter (a connection or a queue) owns the counters, its gate says what it waits
//! for. So there are never more edges than waiters times gates, and they go with their waiter. Counters only
//! grow; two looks at them give seconds per second.
//!
//! Begun and ended where the machine already is when somebody is held or let go: nothing is done for a
//! message that waits for nobody, and nothing is allocated for who never waited.

/// An admission point: where somebody is held, and by what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Gate {
    /// A connection's bytes have arrived and wait for the broker to come round to them.
    Turn,
    /// A publishing connection is not read: the open batch of the log is full.
    Batch,
    /// A publishing connection is not read: messages fill the memory budget.
    Memory,
    /// A publishing connection is not read: there is no room on disk for another segment.
    Space,
    /// A publishing connection is not read: it has as many unconfirmed publishes as are allowed.
    Unconfirmed,
    /// A connection is not read: its client does not take the answers it has.
    Outgoing,
    /// A connection is not read: the broker stops.
    Stop,
    /// Confirms and answers that promise durability wait until their batch is synced.
    Sync,
    /// Deliveries of a connection wait until its client has taken earlier ones.
    Socket,
    /// Messages of a queue wait until its consumers settle what they hold.
    Credit,
    /// Messages of a queue wait until its consumers' clients have taken earlier deliveries.
    Delivery,
    /// Messages of a queue wait, and nobody consumes it.
    NoConsumer,
    /// Messages of a queue wait to be read back from disk.
    Run,
    /// Messages of a queue wait for memory to be read back into.
    Room,
    /// A publishing connection is not read, or its confirms wait: a queue with `x-flow` = `balance` makes its
    /// publishers follow its consumers.
    Balance,
}

impl Gate {
    /// All of them, in the order of their numbers.
    pub const ALL: [Gate; 15] = [
        Gate::Turn,
        Gate::Batch,
        Gate::Memory,
        Gate::Space,
        Gate::Unconfirmed,
        Gate::Outgoing,
        Gate::Stop,
        Gate::Sync,
        Gate::Socket,
        Gate::Credit,
        Gate::Delivery,
        Gate::NoConsumer,
        Gate::Run,
        Gate::Room,
        Gate::Balance,
    ];

    /// Its name, for machines: metrics and JSON. Never changes.
    pub fn name(self) -> &'static str {
        match self {
            Gate::Turn => "turn",
            Gate::Batch => "batch",
            Gate::Memory => "memory",
            Gate::Space => "space",
            Gate::Unconfirmed => "unconfirmed",
            Gate::Outgoing => "outgoing",
            Gate::Stop => "stop",
            Gate::Sync => "sync",
            Gate::Socket => "socket",
            Gate::Credit => "credit",
            Gate::Delivery => "delivery",
            Gate::NoConsumer => "no_consumer",
            Gate::Run => "run",
            Gate::Room => "room",
            Gate::Balance => "balance",
        }
    }

    /// What is waited for: `broker`, `disk`, `memory`, `client` or `consumers`.
    pub fn waits_for(self) -> &'static str {
        match self {
            Gate::Turn | Gate::Stop => "broker",
            Gate::Batch | Gate::Space | Gate::Unconfirmed | Gate::Sync | Gate::Run => "disk",
            Gate::Memory | Gate::Room => "memory",
            Gate::Outgoing | Gate::Socket => "client",
            Gate::Credit | Gate::Delivery | Gate::NoConsumer | Gate::Balance => "consumers",
        }
    }
}

/// Gates at which a connection that publishes is not read: whatever else it sends waits as well.
const PUBLISHES: [Gate; 4] = [Gate::Batch, Gate::Memory, Gate::Space, Gate::Unconfirmed];

/// The counters of one edge.
#[derive(Debug, Clone, Copy, Default)]
struct Watch {
    total_us: u64,
    /// While `running > 0`: up to when the time is in `total_us`.
    since_us: u64,
    /// Reasons to wait at the same time; the time counts once.
    running: u32,
}

impl Watch {
    fn total_us(&self, now_us: u64) -> u64 {
        let open_us = if self.running > 0 { now_us - self.since_us } else { 0 };
        self.total_us + open_us
    }
}

/// All edges of one waiter. Times are monotonic microseconds.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// The one gate that holds it as a whole; see [`Waits::hold`].
    held: Option<Gate>,
    watches: Option<Box<[Watch; Gate::ALL.len()]>>,
}

impl Waits {
    /// The waiter is held by `gate` from now on, and by no other one that was named here.
    pub(crate) fn hold(&mut self, gate: Option<Gate>, now_us: u64) {
        if self.held == gate {
            return;
        }
        if let Some(before) = self.held {
            self.end(before, now_us);
        }
        if let Some(gate) = gate {
            self.begin(gate, now_us);
        }
        self.held = gate;
    }

    /// The waiter is held by nothing any more, if it was `gate` that held it; it need not be asked to go on for that.
    pub(crate) fn release(&mut self, gate: Gate, now_us: u64) {
        if self.held == Some(gate) {
            self.hold(None, now_us);
        }
    }

    /// One more reason to wait at `gate`.
    pub(crate) fn begin(&mut self, gate: Gate, now_us: u64) {
        let watch = self.watch(gate);
        if watch.running == 0 {
            watch.since_us = now_us;
        }
        watch.running += 1;
    }

    /// One reason less. Nothing happens if there is none: [`Waits::end_all`] may have come first.
    pub(crate) fn end(&mut self, gate: Gate, now_us: u64) {
        let watch = self.watch(gate);
        if watch.running == 1 {
            watch.total_us = watch.total_us(now_us);
        }
        watch.running = watch.running.saturating_sub(1);
    }

    /// Counts a wait that is over.
    pub(crate) fn add(&mut self, gate: Gate, waited_us: u64) {
        self.watch(gate).total_us += waited_us;
    }

    /// The waiter waits for nothing any more.
    pub(crate) fn end_all(&mut self, now_us: u64) {
        self.held = None;
        for watch in self.watches.iter_mut().flat_map(|watches| watches.iter_mut()) {
            watch.total_us = watch.total_us(now_us);
            watch.running = 0;
        }
    }

    /// Each gate it ever waited at: microseconds so far, and whether it waits now.
    pub(crate) fn edges(&self, now_us: u64) -> impl Iterator<Item = (Gate, u64, bool)> {
        let watches = self.watches.iter().flat_map(|watches| watches.iter());
        Gate::ALL
            .into_iter()
            .zip(watches)
            .map(move |(gate, watch)| (gate, watch.total_us(now_us), watch.running > 0))
            .filter(|(_, waited_us, waiting)| *waited_us > 0 || *waiting)
    }

    /// For how long it was not read because it publishes, so far.
    pub(crate) fn publishes_held_us(&self, now_us: u64) -> u64 {
        let held = self.edges(now_us).filter(|(gate, ..)| PUBLISHES.contains(gate));
        held.map(|(_, waited_us, _)| waited_us).sum()
    }

    fn watch(&mut self, gate: Gate) -> &mut Watch {
        &mut self.watches.get_or_insert_default()[gate as usize]
    }
}

/// What waiters that are gone have waited, by gate.
#[derive(Debug, Default)]
pub(crate) struct PastWaits([u64; Gate::ALL.len()]);

impl PastWaits {
    /// A waiter goes.
    pub(crate) fn add(&mut self, waits: &Waits, now_us: u64) {
        for (gate, waited_us, _) in waits.edges(now_us) {
            self.0[gate as usize] += waited_us;
        }
    }

    /// In microseconds.
    pub(crate) fn waited_us(&self, gate: Gate) -> u64 {
        self.0[gate as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edges(waits: &Waits, now_us: u64) -> Vec<(&'static str, u64, bool)> {
        waits.edges(now_us).map(|(gate, us, waiting)| (gate.name(), us, waiting)).collect()
    }

    #[test]
    fn gates_are_numbered_in_their_order_and_named_once() {
        for (index, gate) in Gate::ALL.into_iter().enumerate() {
            assert_eq!(gate as usize, index);
            assert!(Gate::ALL.iter().filter(|other| other.name() == gate.name()).count() == 1);
        }
    }

    #[test]
    fn who_never_waited_has_no_edges() {
        let mut waits = Waits::default();
        waits.hold(None, 5);
        waits.end_all(9);
        assert!(edges(&waits, 10).is_empty());
        assert!(waits.watches.is_none());
    }

    #[test]
    fn a_change_of_the_gate_ends_one_wait_and_begins_another() {
        let mut waits = Waits::default();
        waits.hold(Some(Gate::Batch), 100);
        waits.hold(Some(Gate::Batch), 120);
        waits.hold(Some(Gate::Memory), 150);
        assert_eq!(edges(&waits, 190), [("batch", 50, false), ("memory", 40, true)]);
        waits.hold(None, 200);
        assert_eq!(edges(&waits, 900), [("batch", 50, false), ("memory", 50, false)]);
    }

    #[test]
    fn two_channels_that_wait_for_the_same_sync_wait_once() {
        let mut waits = Waits::default();
        waits.begin(Gate::Sync, 10);
        waits.begin(Gate::Sync, 20);
        waits.end(Gate::Sync, 30);
        assert_eq!(edges(&waits, 35), [("sync", 25, true)]);
        waits.end(Gate::Sync, 40);
        assert_eq!(edges(&waits, 99), [("sync", 30, false)]);
    }

    #[test]
    fn what_is_over_stays_counted_when_its_waiter_goes() {
        let (mut waits, mut past) = (Waits::default(), PastWaits::default());
        waits.begin(Gate::Sync, 0);
        waits.add(Gate::Turn, 7);
        waits.end_all(30);
        waits.end(Gate::Sync, 50);
        past.add(&waits, 60);
        past.add(&waits, 60);
        assert_eq!((past.waited_us(Gate::Sync), past.waited_us(Gate::Turn)), (60, 14));
        assert_eq!(past.waited_us(Gate::Batch), 0);
    }
}
