//! A channel that its user drives: requests and their answers, deliveries, confirms, returns.
//!
//! A channel answers in the order in which it was asked, so the answers find their askers by counting. An
//! asker that went away leaves its place in the line, and the answer is dropped when it comes. Gets have a line
//! of their own: a broker whose message lies on disk answers what was asked later before it.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};

use forebay_wire::Method;

use super::remember;
use super::subscriptions::Subscriptions;
use super::wakeups::Wakeups;
use crate::error::{ChannelFault, Lost, Refusal};
use crate::machine::{ChannelError, Returned, Settled};
use crate::received::Received;
use crate::returns::{ReturnedMessage, Returns};

/// An answer, reduced to what somebody may want to know of it. `subscription` tells a consumer from those that had its tag before.
#[derive(Debug)]
pub(crate) enum Reply {
    Done,
    Declared { name: String, message_count: u32, consumer_count: u32 },
    Count(u32),
    Consuming { tag: String, subscription: u64 },
    Got { message: Received, message_count: u32 },
    Empty,
}

impl Reply {
    pub(crate) fn from_method(method: &Method<'_>) -> Reply {
        match method {
            Method::QueueDeclareOk(ok) => Reply::Declared {
                name: ok.queue.to_string(),
                message_count: ok.message_count,
                consumer_count: ok.consumer_count,
            },
            Method::QueuePurgeOk(ok) => Reply::Count(ok.message_count),
            Method::QueueDeleteOk(ok) => Reply::Count(ok.message_count),
            Method::BasicConsumeOk(ok) => {
                // The channel counts them.
                Reply::Consuming { tag: ok.consumer_tag.to_string(), subscription: 0 }
            }
            Method::BasicGetEmpty(_) => Reply::Empty,
            _ => Reply::Done,
        }
    }
}

/// A place in the line of askers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket(u64);

#[derive(Debug)]
enum Asked {
    /// The broker has not answered; `abandoned`: nobody wants to know.
    Waiting { wants: Wants, abandoned: bool, waker: Option<Waker> },
    /// It has.
    Answered(Reply),
    /// The answer was looked at, or dropped.
    Done,
}

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    /// `get-ok` or `get-empty`.
    Message,
    /// Any other answer.
    Answer,
}

impl Wants {
    fn is_met_by(self, reply: &Reply) -> bool {
        (self == Wants::Message) == matches!(reply, Reply::Got { .. } | Reply::Empty)
    }
}

/// One channel in its user's hands.
#[derive(Debug, Default)]
pub(crate) struct UserChannel {
    /// Asked and not answered, or answered and not looked at; `first` is the front's ticket.
    asked: VecDeque<Asked>,
    first: u64,
    subscriptions: Subscriptions,
    settled: VecDeque<Settled>,
    settled_waker: Option<Waker>,
    returns: Returns,
    /// Our close is out.
    closing: bool,
    over: Option<ChannelFault>,
    /// Its connection is gone, so what was not taken counts in nobody's inbox.
    uncounted: bool,
}

impl UserChannel {
    /// Whether it can be used.
    pub(crate) fn usable(&self) -> Result<(), ChannelFault> {
        match &self.over {
            Some(fault) => Err(fault.clone()),
            None if self.closing => Err(ChannelError::NotOpen.into()),
            None => Ok(()),
        }
    }

    /// Whether the broker owes it an answer.
    pub(crate) fn is_busy(&self) -> bool {
        self.asked.iter().any(|asked| matches!(asked, Asked::Waiting { .. }))
    }

    /// A request is going out.
    pub(crate) fn ask(&mut self, wants: Wants) -> Ticket {
        self.asked.push_back(Asked::Waiting { wants, abandoned: false, waker: None });
        Ticket(self.first + self.asked.len() as u64 - 1)
    }

    /// Our close is going out: nothing can follow it.
    pub(crate) fn ask_last(&mut self) -> Ticket {
        self.closing = true;
        self.ask(Wants::Answer)
    }

    /// The broker agrees to our close. What else was asked it has not answered, or was not heard any more.
    pub(crate) fn close_ok(&mut self, wakeups: &mut Wakeups) {
        if let Some(last) = self.asked.back_mut()
            && let Asked::Waiting { abandoned, waker, .. } = last
        {
            wakeups.extend(waker.take());
            *last = if *abandoned { Asked::Done } else { Asked::Answered(Reply::Done) };
        }
        self.end(ChannelError::NotOpen.into(), wakeups);
    }

    pub(crate) fn poll_reply(
        &mut self,
        ticket: Ticket,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Reply, ChannelFault>> {
        let over = self.over.clone();
        match self.place(ticket) {
            Some(Asked::Waiting { waker, .. }) => match over {
                Some(fault) => Poll::Ready(Err(fault)),
                None => {
                    remember(waker, cx);
                    Poll::Pending
                }
            },
            Some(place) => match std::mem::replace(place, Asked::Done) {
                Asked::Answered(reply) => {
                    self.forget_done();
                    Poll::Ready(Ok(reply))
                }
                _ => Poll::Ready(Err(ChannelError::NotOpen.into())),
            },
            None => Poll::Ready(Err(ChannelError::NotOpen.into())),
        }
    }

    /// Nobody waits for this answer any more. If it was there and told of a consumer, its tag and its number: nobody will
    /// take its messages.
    pub(crate) fn abandon(&mut self, ticket: Ticket) -> Option<(String, u64)> {
        let mut consumer = None;
        match self.place(ticket) {
            Some(Asked::Waiting { abandoned, waker, .. }) => {
                *abandoned = true;
                *waker = None;
            }
            Some(place) => {
                if let Asked::Answered(Reply::Consuming { tag, subscription }) =
                    std::mem::replace(place, Asked::Done)
                {
                    consumer = Some((tag, subscription));
                }
            }
            None => {}
        }
        self.forget_done();
        consumer
    }

    /// An answer came. The tag of a consumer that nobody waits for any more.
    pub(crate) fn reply(&mut self, mut reply: Reply, wakeups: &mut Wakeups) -> Option<String> {
        let mut unwanted = None;
        let waits = |asked: &&mut Asked| match asked {
            Asked::Waiting { wants, .. } => wants.is_met_by(&reply),
            _ => false,
        };
        let place = self.asked.iter_mut().find(waits)?;
        let Asked::Waiting { abandoned, waker, .. } = place else { return None };
        wakeups.extend(waker.take());
        if let Reply::Consuming { tag, subscription } = &mut reply {
            if *abandoned {
                self.subscriptions.forget(tag);
                unwanted = Some(tag.clone());
            } else {
                *subscription = self.subscriptions.begin(tag);
            }
        }
        *place = if *abandoned { Asked::Done } else { Asked::Answered(reply) };
        self.forget_done();
        unwanted
    }

    /// A message for a consumer. Its bytes, which are returned, count in the connection's inbox until it is
    /// taken.
    pub(crate) fn delivered(
        &mut self,
        tag: &str,
        message: Received,
        wakeups: &mut Wakeups,
    ) -> usize {
        let bytes = message.size_bytes();
        if self.subscriptions.deliver(tag, message, wakeups) { bytes } else { 0 }
    }

    pub(crate) fn poll_delivery(
        &mut self,
        tag: &str,
        subscription: u64,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Received>, ChannelFault>> {
        let Some(subscription) = self.subscriptions.find(tag, subscription) else {
            return Poll::Ready(self.usable().map(|()| None));
        };
        if let Some(message) = subscription.ready.pop_front() {
            return Poll::Ready(Ok(Some(message)));
        }
        if let Some(fault) = &self.over {
            return Poll::Ready(Err(fault.clone()));
        }
        if subscription.cancelled {
            return Poll::Ready(Ok(None));
        }
        remember(&mut subscription.waker, cx);
        Poll::Pending
    }

    /// The broker ended a consumer, or agreed to its end: nothing more comes for it.
    pub(crate) fn cancelled(&mut self, tag: &str, wakeups: &mut Wakeups) {
        self.subscriptions.cancelled(tag, wakeups);
    }

    /// Whether more may come for this consumer.
    pub(crate) fn is_consuming(&mut self, tag: &str, subscription: u64) -> bool {
        self.subscriptions.find(tag, subscription).is_some_and(|found| !found.cancelled)
    }

    /// Nobody will take what waited for this consumer; how many bytes of the inbox that was.
    pub(crate) fn drop_subscription(&mut self, tag: &str, subscription: u64) -> usize {
        let bytes = self.subscriptions.remove(tag, subscription);
        self.counted(bytes)
    }

    /// What still comes for this consumer, until the broker agrees to its end, is dropped.
    pub(crate) fn forget(&mut self, tag: &str) {
        self.subscriptions.forget(tag);
    }

    /// How much of `bytes` of its messages counts in the connection's inbox.
    pub(crate) fn counted(&self, bytes: usize) -> usize {
        if self.uncounted { 0 } else { bytes }
    }

    pub(crate) fn settled(&mut self, settled: Settled, wakeups: &mut Wakeups) {
        match self.settled.back_mut() {
            // Neighbours are joined, so this stays short even when nobody looks.
            Some(last) if last.last + 1 == settled.first && last.acked == settled.acked => {
                last.last = settled.last;
            }
            _ => self.settled.push_back(settled),
        }
        wakeups.extend(self.settled_waker.take());
    }

    pub(crate) fn poll_settled(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Settled, ChannelFault>> {
        if let Some(settled) = self.settled.pop_front() {
            return Poll::Ready(Ok(settled));
        }
        if let Some(fault) = &self.over {
            return Poll::Ready(Err(fault.clone()));
        }
        remember(&mut self.settled_waker, cx);
        Poll::Pending
    }

    pub(crate) fn returned(&mut self, returned: &Returned<'_>) {
        self.returns.push(returned);
    }

    pub(crate) fn take_returns(&mut self) -> VecDeque<ReturnedMessage> {
        self.returns.take()
    }

    /// The broker closed the channel.
    pub(crate) fn closed(&mut self, why: Refusal, wakeups: &mut Wakeups) {
        self.end(ChannelFault::Refused(why), wakeups);
    }

    /// The connection is gone, and the channel with it.
    pub(crate) fn lost(&mut self, lost: Lost, wakeups: &mut Wakeups) {
        self.uncounted = true;
        self.end(ChannelFault::Lost(lost), wakeups);
    }

    /// What waits to be taken, in bytes of the connection's inbox.
    pub(crate) fn ready_bytes(&self) -> usize {
        self.counted(self.subscriptions.ready_bytes())
    }

    fn end(&mut self, fault: ChannelFault, wakeups: &mut Wakeups) {
        self.over.get_or_insert(fault);
        wakeups.extend(self.asked.iter_mut().filter_map(|asked| match asked {
            Asked::Waiting { waker, .. } => waker.take(),
            _ => None,
        }));
        wakeups.extend(self.subscriptions.take_wakers());
        wakeups.extend(self.settled_waker.take());
    }

    fn place(&mut self, ticket: Ticket) -> Option<&mut Asked> {
        self.asked.get_mut(ticket.0.checked_sub(self.first)? as usize)
    }

    fn forget_done(&mut self) {
        while let Some(Asked::Done) = self.asked.front() {
            self.asked.pop_front();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn poll(channel: &mut UserChannel, ticket: Ticket) -> Poll<Result<Reply, ChannelFault>> {
        channel.poll_reply(ticket, &mut Context::from_waker(Waker::noop()))
    }

    fn ask(channel: &mut UserChannel) -> Ticket {
        channel.ask(Wants::Answer)
    }

    fn count(poll: Poll<Result<Reply, ChannelFault>>) -> Option<u32> {
        match poll {
            Poll::Ready(Ok(Reply::Count(count))) => Some(count),
            _ => None,
        }
    }

    #[test]
    fn an_answer_nobody_waits_for_does_not_go_to_the_next_asker() {
        let mut channel = UserChannel::default();
        let (first, second, third) = (ask(&mut channel), ask(&mut channel), ask(&mut channel));
        channel.abandon(second);
        for number in [1, 2, 3] {
            channel.reply(Reply::Count(number), &mut Wakeups::default());
        }
        assert_eq!(count(poll(&mut channel, third)), Some(3));
        assert_eq!(count(poll(&mut channel, first)), Some(1));
        assert!(channel.asked.is_empty());
        let fourth = ask(&mut channel);
        assert!(poll(&mut channel, fourth).is_pending());
    }

    #[test]
    fn a_get_that_waits_for_the_disk_keeps_its_answer_and_leaves_others_theirs() {
        let mut channel = UserChannel::default();
        let get = channel.ask(Wants::Message);
        let purge = ask(&mut channel);
        channel.reply(Reply::Count(7), &mut Wakeups::default());
        assert_eq!(count(poll(&mut channel, purge)), Some(7));
        assert!(poll(&mut channel, get).is_pending());
        channel.reply(Reply::Empty, &mut Wakeups::default());
        assert!(matches!(poll(&mut channel, get), Poll::Ready(Ok(Reply::Empty))));
        assert!(channel.asked.is_empty());
    }

    #[test]
    fn close_ok_answers_the_close_and_ends_whatever_else_was_asked() {
        let mut channel = UserChannel::default();
        let (given_up, waiting) = (ask(&mut channel), ask(&mut channel));
        channel.abandon(given_up);
        let close = channel.ask_last();
        channel.close_ok(&mut Wakeups::default());
        assert!(matches!(poll(&mut channel, close), Poll::Ready(Ok(Reply::Done))));
        assert!(matches!(poll(&mut channel, waiting), Poll::Ready(Err(_))));
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(channel.poll_delivery("tag", 1, &mut context), Poll::Ready(Err(_))));
    }

    #[test]
    fn whoever_waits_hears_that_the_channel_is_over() {
        let mut channel = UserChannel::default();
        let ticket = ask(&mut channel);
        channel.closed(Refusal { code: 404, text: "NOT_FOUND".into() }, &mut Wakeups::default());
        assert!(matches!(poll(&mut channel, ticket), Poll::Ready(Err(ChannelFault::Refused(_)))));
        assert!(channel.usable().is_err());
    }
}
