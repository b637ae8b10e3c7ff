//! How a consumer ends: because its user wants no more, by the broker's will, or with its connection.

use super::Intake;
use crate::error::{ChannelFault, ConsumeError, Lost, Refusal};
use crate::happening::Happening;
use crate::machine::Machine;
use crate::session::wakeups::Wakeups;

/// Of a queue that is not there (0-9-1 section 1.2).
const NOT_FOUND: u16 = 404;
/// Or that is there, on a node of a RabbitMQ cluster that is not: `home node 'rabbit@b' of durable queue 'q' in vhost '/' is down or
/// inaccessible`.
const NODE_DOWN: &str = "is down or inaccessible";
const ACCESS_REFUSED: u16 = 403;

impl Intake {
    /// Takes no more messages; those that wait here go back to their queue, those in work can be settled.
    pub(crate) fn stop(&mut self, machine: &mut Machine) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        if let Some(tap) = &mut self.tap {
            tap.release();
            tap.cancel(machine, &self.how);
        }
        self.hand_back(machine);
        self.flush(machine);
    }

    /// The connection is being closed: the same, and whoever asks for messages hears why there are none.
    pub(crate) fn close(&mut self, machine: &mut Machine, wakeups: &mut Wakeups) {
        self.end(ConsumeError::Channel(Lost::ClosedByUs.into()), wakeups);
        self.stop(machine);
        self.flush(machine);
    }

    /// Nothing more comes, for this reason, unless its user wanted no more before.
    fn end(&mut self, error: ConsumeError, wakeups: &mut Wakeups) {
        if !self.stopping {
            self.over.get_or_insert(error);
        }
        wakeups.extend(self.waker.take());
    }

    /// The broker ended the consumer of this tag. True: it was the one that takes messages.
    pub(crate) fn cancelled(&mut self, tag: &str, wakeups: &mut Wakeups) -> bool {
        let how = &self.how;
        // One that was replaced may be told of as well.
        let Some(tap) = self.tap.as_mut().filter(|tap| tap.consumer_tag(how) == tag) else {
            return false;
        };
        let unexpected = !tap.cancelled;
        tap.cancelled = true;
        // No other consumer follows this one, so what is finished is acknowledged as ever.
        tap.release();
        if unexpected {
            self.end(ConsumeError::Cancelled, wakeups);
        }
        unexpected
    }

    /// The broker closed the tap's channel. What to tell: that a queue that was there is gone, or cannot be reached.
    pub(crate) fn channel_closed(
        &mut self,
        why: &Refusal,
        now_us: u64,
        wakeups: &mut Wakeups,
    ) -> Option<Happening> {
        let deleted = why.code == NOT_FOUND && self.began;
        self.drop_tap();
        if deleted && why.text.contains(NODE_DOWN) {
            let told = || Happening::QueueAway { queue: self.how.queue.clone(), why: why.clone() };
            return self.exclusion.away(now_us).then(told);
        }
        let had_it = self.began && self.how.exclusive && why.code == ACCESS_REFUSED;
        if had_it && self.exclusion.refused(now_us) {
            return None;
        }
        let error = if deleted {
            ConsumeError::Cancelled
        } else {
            ConsumeError::Channel(ChannelFault::Refused(why.clone()))
        };
        self.end(error, wakeups);
        deleted.then(|| Happening::ConsumerCancelled { queue: self.how.queue.clone() })
    }

    /// The connection broke: nothing that it delivered can be settled any more.
    pub(crate) fn lost(&mut self, now_us: u64) {
        self.drop_tap();
        self.exclusion.over();
        self.credit.restart(now_us);
    }

    /// There will be no other connection.
    pub(crate) fn give_up(&mut self, lost: &Lost, wakeups: &mut Wakeups) {
        self.drop_tap();
        self.end(ConsumeError::Channel(ChannelFault::Lost(lost.clone())), wakeups);
    }

    /// A tap that takes no messages and has nothing left to settle.
    pub(super) fn close_done(&mut self, machine: &mut Machine) {
        if self.stopping
            && let Some(tap) = self.tap.take_if(|tap| tap.is_done())
        {
            let _ = machine.close_channel(tap.channel);
        }
    }

    fn drop_tap(&mut self) {
        self.tap = None;
        self.present.set(None);
        self.ready.clear();
        self.working.clear();
        self.fresh = 0;
    }
}
