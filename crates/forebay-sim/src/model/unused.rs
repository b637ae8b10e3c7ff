//! Queues that go when nobody uses them (`x-expires`). Consumers, declarations, also passive ones, and gets are uses; a get for as
//! long as it waits for the disk, which nobody sees.

use crate::names::Name;
use crate::violation::{Violation, violation};

use super::Model;
use super::channel::Reply;
use super::queue::Queue;

/// When a queue was used last, in microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unused {
    /// It goes after so long.
    after_us: u64,
    /// It was at the earliest then,
    from_us: u64,
    /// and at the latest then.
    to_us: u64,
}

impl Unused {
    pub(super) fn after(after_us: u64) -> Unused {
        Unused { after_us, from_us: 0, to_us: 0 }
    }
}

impl Queue {
    /// Somebody uses it now.
    pub(super) fn used(&mut self) {
        if let Some(unused) = &mut self.unused {
            (unused.from_us, unused.to_us) = (self.now_us, self.now_us);
        }
    }

    /// Somebody has used it between the last time that is known and now.
    fn was_used(&mut self) {
        if let Some(unused) = &mut self.unused {
            unused.to_us = self.now_us;
        }
    }
}

impl Model {
    /// Somebody has declared the base queues between the start and now.
    pub(crate) fn base_was_used(&mut self) {
        self.queues.values_mut().for_each(Queue::was_used);
    }

    /// These have been answered, or are so no more; gets among them may have waited until now.
    pub(super) fn waited_until_now<'a>(&mut self, replies: impl IntoIterator<Item = &'a Reply>) {
        for reply in replies {
            if let Reply::Get { queue, .. } = reply
                && let Some(queue) = self.queues.get_mut(*queue)
            {
                queue.was_used();
            }
        }
    }

    /// Timers have run: which queues are there, and how late may one of them go, in microseconds?
    pub(crate) fn timers_ran(
        &mut self,
        is_there: impl Fn(Name) -> bool,
        late_us: impl Fn(&Model, Name) -> u64,
    ) -> Result<(), Violation> {
        let names: Vec<Name> = self
            .queues
            .values()
            .filter(|queue| queue.exists && queue.unused.is_some())
            .map(|queue| queue.name)
            .collect();
        for name in names {
            let waited_for = self.is_got_by_others(name);
            let Some(queue) = self.queues.get_mut(name) else { continue };
            if waited_for {
                queue.was_used();
            }
            let Some(Unused { after_us, from_us, to_us }) = queue.unused else { continue };
            let (now_us, used) = (queue.now_us, !queue.consumers.is_empty());
            let what = format!("{name} at {now_us} us, used at {from_us} to {to_us} us");
            if is_there(name) {
                let late_by_us = now_us.checked_sub(to_us + after_us);
                if !used && late_by_us.is_some_and(|us| us >= late_us(self, name)) {
                    return violation("a queue that nobody uses goes", what);
                }
                continue;
            }
            if used || now_us < from_us + after_us {
                return violation("a queue that is used stays", what);
            }
            self.op += 1;
            self.delete_queue(name);
        }
        Ok(())
    }
}
