//! A session's callers: each with a channel of its own, on which its replies come.

use super::{Calls, Owner, Phase, Session};

impl Session {
    pub(crate) fn add_calls(&mut self, calls: Calls) -> usize {
        let key = self.calls.insert(calls);
        if let Phase::Over(lost) = self.phase.clone() {
            self.calls[key].give_up(&lost, &mut self.wakeups);
        } else if self.phase == Phase::Up {
            self.open_calls(key);
        }
        key
    }

    pub(crate) fn calls(&mut self, key: usize) -> &mut Calls {
        &mut self.calls[key]
    }

    pub(crate) fn call(
        &mut self,
        key: usize,
        exchange: &str,
        routing_key: &str,
        message: crate::Message,
        now_us: u64,
    ) -> Result<u64, crate::CallError> {
        if self.phase == Phase::Up && self.calls[key].channel().is_none() {
            self.open_calls(key);
        }
        self.backlog |= self.machine.outgoing().len() >= self.machine.outgoing_bytes_max();
        let (machine, wakeups) = (&mut self.machine, &mut self.wakeups);
        self.calls[key].call(machine, exchange, routing_key, message, now_us, wakeups)
    }

    pub(crate) fn drop_calls(&mut self, key: usize) {
        self.starved.retain(|&starved| starved != Owner::Calls(key));
        if let Some(number) = self.calls.remove(key).channel() {
            let _ = self.machine.close_channel(number);
            self.own(number, Owner::Nobody);
        }
    }

    pub(super) fn open_calls(&mut self, key: usize) {
        if self.is_starved(Owner::Calls(key)) {
            return;
        }
        if let Some(number) = self.calls[key].opened(&mut self.machine) {
            self.own(number, Owner::Calls(key));
            self.backlog |= self.calls[key].pump(&mut self.machine, &mut self.wakeups);
        }
    }
}
