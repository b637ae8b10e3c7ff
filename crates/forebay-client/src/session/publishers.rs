//! A session's publishers: each a [`Ledger`] with a channel of its own.

use forebay_flow::{Together, WaiterId};

use super::{Ledger, NAMED_PUBLISHERS, Owner, Phase, Published, Session};
use crate::error::Lost;
use crate::happening::Happening;
use crate::machine::Machine;
use crate::message::Message;
use crate::outcome::Unheard;

impl Session {
    pub(crate) fn add_ledger(&mut self, ledger: Ledger, now_us: u64) -> usize {
        let key = self.ledgers.insert(ledger);
        if let Phase::Over(lost) = self.phase.clone() {
            self.ledgers[key].give_up(&lost, &mut self.wakeups);
        } else if self.phase == Phase::Up {
            self.open_ledger(key, now_us);
        }
        key
    }

    pub(crate) fn ledger(&mut self, key: usize) -> (&mut Ledger, &mut Machine) {
        (&mut self.ledgers[key], &mut self.machine)
    }

    /// A publish could not go out at once.
    pub(crate) fn publish(
        &mut self,
        key: usize,
        message: Message,
        stamps: Option<Box<crate::marks::Stamps>>,
        now_us: u64,
    ) -> Published {
        if self.closing {
            return Published::Refused(Lost::ClosedByUs.into(), message);
        }
        let full = self.machine.outgoing().len() >= self.machine.outgoing_bytes_max();
        self.backlog |= full;
        self.ledgers[key].publish(&mut self.machine, message, stamps, now_us)
    }

    /// Whether a message of this publisher would leave at once.
    pub(crate) fn has_room(&self, key: usize) -> bool {
        self.is_serving(key) && self.ledgers[key].has_room()
    }

    /// Whether its messages leave as soon as its window lets them.
    pub(crate) fn is_serving(&self, key: usize) -> bool {
        self.phase == Phase::Up && self.blocked.is_none() && self.ledgers[key].may_write()
    }

    /// A caller waits no longer: its message back, or its entry if it was admitted meanwhile. Those behind it may pass
    /// where it was too large.
    pub(crate) fn withdraw(
        &mut self,
        key: usize,
        id: WaiterId,
        now_us: u64,
    ) -> Result<usize, Message> {
        let withdrawn = self.ledgers[key].withdraw(id);
        self.pump(key, now_us);
        withdrawn
    }

    /// The same, for one who does not care what becomes of the message. If it is not sent it is to be dropped where nobody
    /// holds the session: its spans end with it.
    pub(crate) fn stop_waiting(
        &mut self,
        key: usize,
        id: WaiterId,
        now_us: u64,
    ) -> Option<Message> {
        let message = self.ledgers[key].stop_waiting(id, &mut self.wakeups);
        self.pump(key, now_us);
        message
    }

    /// Nobody asks for this outcome any more.
    pub(crate) fn abandon_outcome(&mut self, key: usize, entry: usize) {
        self.ledgers[key].abandon(entry, &mut self.wakeups);
    }

    /// Callers of a publisher without order who wait here shall ask again.
    pub(crate) fn turn_away(&mut self, key: usize) {
        self.ledgers[key].turn_away(&mut self.wakeups);
    }

    fn pump(&mut self, key: usize, now_us: u64) {
        self.backlog |= self.ledgers[key].pump(&mut self.machine, now_us, &mut self.wakeups);
    }

    /// There is room in the send buffer again, and some were cut off when it was full. Whoever was cut off first comes last
    /// now: with more to send than the connection carries each has a buffer's worth in turn.
    pub(super) fn pump_in_turn(&mut self, now_us: u64) {
        let mut keys: Vec<usize> = self.ledgers.iter().map(|(key, _)| key).collect();
        let after = keys.partition_point(|&key| key <= self.cut_off);
        keys.rotate_left(after);
        for key in keys {
            let more = self.ledgers[key].pump(&mut self.machine, now_us, &mut self.wakeups);
            if more && !self.backlog {
                self.cut_off = key;
            }
            self.backlog |= more;
            self.sweep_ledger(key);
        }
    }

    /// Its last handle is gone; it goes when nothing is in flight.
    pub(crate) fn drop_ledger(&mut self, key: usize) {
        self.ledgers[key].handle_dropped();
        self.sweep_ledger(key);
    }

    /// No window of a publisher grows from now on, or those that want to may again.
    pub(crate) fn hold_windows(&mut self, hold: bool) {
        for (_, ledger) in &mut self.ledgers {
            ledger.hold_window(hold);
        }
    }

    /// Gives a publisher another channel if its own is no good.
    pub(super) fn replace_faulty(&mut self, key: usize, now_us: u64) {
        let ledger = &mut self.ledgers[key];
        let (Some(fault), Some(number)) = (ledger.fault(now_us), ledger.channel()) else { return };
        ledger.replace();
        let _ = self.machine.close_channel(number);
        self.own(number, Owner::Nobody);
        self.happenings.push(Happening::PublisherChannelReplaced { fault });
        self.open_ledger(key, now_us);
    }

    pub(super) fn sweep_ledger(&mut self, key: usize) {
        if self.ledgers[key].is_over() {
            let ledger = self.ledgers.remove(key);
            self.unheard.add(ledger.unheard());
            self.starved.retain(|&starved| starved != Owner::Ledger(key));
            // One whose open-ok has not come yet is not known to the ledger.
            let owned = |(place, &owner): (usize, &Owner)| {
                (owner == Owner::Ledger(key)).then_some(place as u16 + 1)
            };
            for number in self.owners.iter().enumerate().filter_map(owned).collect::<Vec<_>>() {
                let _ = self.machine.close_channel(number);
                self.own(number, Owner::Nobody);
            }
        }
    }

    pub(super) fn open_ledger(&mut self, key: usize, now_us: u64) {
        if self.is_starved(Owner::Ledger(key)) {
            return;
        }
        let named = self.machine.server().can(NAMED_PUBLISHERS);
        let kind = self.machine.server().kind();
        let words = if named { self.ledgers[key].open_words() } else { String::new() };
        let Ok(number) = self.machine.open_channel_with(&words) else { return };
        let Ok(()) = self.machine.select_confirms(number) else { return };
        self.own(number, Owner::Ledger(key));
        let ledger = &mut self.ledgers[key];
        ledger.set_broker(kind);
        ledger.set_trial(self.trial.is_some().then_some(0));
        ledger.commit_time(self.commit_time);
        if self.blocked.is_some() {
            ledger.blocked(now_us);
        }
        if named && ledger.is_in_doubt() {
            return; // it goes on with the answer
        }
        ledger.opened(number, now_us);
        self.backlog |= ledger.pump(&mut self.machine, now_us, &mut self.wakeups);
    }

    /// Whether every publish has its outcome.
    pub(crate) fn is_quiet(&self) -> bool {
        self.ledgers.iter().all(|(_, ledger)| ledger.is_idle())
    }

    /// When [`Session::expire`] has something to do, or may have; `None`: no publisher has a limit.
    pub(crate) fn next_expiry_us(&self, now_us: u64) -> Option<u64> {
        self.ledgers.iter().filter_map(|(_, ledger)| ledger.next_expiry_us(now_us)).min()
    }

    /// Messages whose time is over get their outcomes, with or without a connection.
    pub(crate) fn expire(&mut self, now_us: u64) {
        for key in self.ledgers.iter().map(|(key, _)| key).collect::<Vec<_>>() {
            let ledger = &mut self.ledgers[key];
            ledger.expire(now_us, &mut self.wakeups);
            self.backlog |= ledger.pump(&mut self.machine, now_us, &mut self.wakeups);
            self.sweep_ledger(key);
        }
        self.try_suspects(now_us);
    }

    /// Whether there is any publisher, or an outcome that somebody keeps.
    pub(crate) fn has_publishers(&self) -> bool {
        !self.ledgers.is_empty()
    }

    /// Messages that were confirmed since this was last asked.
    pub(crate) fn take_confirmed(&mut self) -> u64 {
        self.ledgers.iter_mut().map(|(_, ledger)| ledger.take_confirmed()).sum()
    }

    /// The least time that the broker took for a message of any of them lately, in microseconds.
    pub(crate) fn service_us(&self) -> Option<u64> {
        self.ledgers.iter().filter_map(|(_, ledger)| ledger.service_us()).min()
    }

    /// What all publishers of the process see of the broker.
    pub(crate) fn together(&mut self, now_us: u64, told: Together) {
        for (_, ledger) in &mut self.ledgers {
            ledger.together(now_us, told);
        }
    }

    /// What is not confirmed, and nobody was told of, over all publishers that there were.
    pub(crate) fn unheard(&self) -> Unheard {
        let mut unheard = self.unheard;
        for (_, ledger) in &self.ledgers {
            unheard.add(ledger.unheard());
        }
        unheard
    }
}
