//! Requests that wait for replies: one channel, one table from correlation-ids to callers.
//!
//! ```text
//!   call ──▶ queued ──▶ sent, mandatory, reply-to amq.rabbitmq.reply-to ──▶ reply: found by its number
//!                                                                      └─▶ returned | lost: an error
//! ```
//! Replies come by direct reply-to (RabbitMQ's extension), straight to this channel and past all queues; a
//! reply costs one look into the table however much else waits. A reply is for the channel that asked, so a
//! connection's end ends its calls: whether they were carried out, nobody can tell.

use std::collections::{BTreeMap, VecDeque};
use std::task::{Context, Poll, Waker};

use forebay_wire::{RawProperties, ShortStr, basic};

use super::remember;
use super::wakeups::Wakeups;
use crate::caller::CallError;
use crate::error::{Lost, Refusal};
use crate::machine::{Delivery, Machine, PublishError, Returned};
use crate::message::Message;
use crate::metrics::CallerMetrics;
use crate::received::Received;
use crate::too_long::TooLong;

/// Calls of one caller that may wait for their replies at a time.
pub const CALLS_MAX: usize = 65_536;

/// The pseudo-queue of direct reply-to.
const REPLY_TO: &str = "amq.rabbitmq.reply-to";

/// What became of a call.
type Answer = Result<Received, CallError>;

#[derive(Debug)]
struct Call {
    exchange: String,
    routing_key: String,
    /// Until it was sent.
    message: Option<Message>,
    asked_at_us: u64,
    answer: Option<Answer>,
    waker: Option<Waker>,
}

/// The calls of one caller.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    channel: Option<u16>,
    /// The broker lets the channel have replies.
    takes_replies: bool,
    open: BTreeMap<u64, Call>,
    queued: VecDeque<u64>,
    next: u64,
    over: Option<Lost>,
    metrics: CallerMetrics,
    properties: Vec<u8>,
}

impl Calls {
    pub(crate) fn channel(&self) -> Option<u16> {
        self.channel
    }

    /// Whether something was sent whose reply may come.
    pub(crate) fn awaits_replies(&self) -> bool {
        self.open.values().any(|call| call.message.is_none() && call.answer.is_none())
    }

    pub(crate) fn metrics(&self) -> CallerMetrics {
        let waiting = self.open.values().filter(|call| call.answer.is_none()).count();
        CallerMetrics { waiting: waiting as u32, ..self.metrics }
    }

    /// Asks. The number is the call's until it is answered or given up.
    pub(crate) fn call(
        &mut self,
        machine: &mut Machine,
        exchange: &str,
        routing_key: &str,
        message: Message,
        now_us: u64,
        wakeups: &mut Wakeups,
    ) -> Result<u64, CallError> {
        if let Some(lost) = &self.over {
            return Err(CallError::Lost(lost.clone()));
        }
        message.check().map_err(CallError::TooLong)?;
        // Of what is passed on as it came, too, the reply is to come here.
        let message = message.with_own_properties();
        if self.open.len() >= CALLS_MAX {
            return Err(CallError::TooManyCalls);
        }
        let number = self.next;
        self.next += 1;
        let call = Call {
            exchange: exchange.to_owned(),
            routing_key: message.own_routing_key().unwrap_or(routing_key).to_owned(),
            message: Some(message),
            asked_at_us: now_us,
            answer: None,
            waker: None,
        };
        self.metrics.calls += 1;
        self.open.insert(number, call);
        self.queued.push_back(number);
        self.pump(machine, wakeups);
        Ok(number)
    }

    pub(crate) fn poll_answer(&mut self, number: u64, cx: &mut Context<'_>) -> Poll<Answer> {
        let call = self.open.get_mut(&number).expect("an answer is asked for until it is there");
        if call.answer.is_none() {
            remember(&mut call.waker, cx);
            return Poll::Pending;
        }
        let call = self.open.remove(&number).expect("it was there above");
        Poll::Ready(call.answer.expect("it was looked at above"))
    }

    /// Nobody waits for this answer any more. True if the request was never sent.
    pub(crate) fn give_up_call(&mut self, number: u64) -> bool {
        let call = self.open.remove(&number);
        self.metrics.given_up += u64::from(call.is_some());
        self.queued.retain(|&queued| queued != number);
        call.is_some_and(|call| call.message.is_some())
    }

    /// There is a connection: opens a channel that takes replies.
    pub(crate) fn opened(&mut self, machine: &mut Machine) -> Option<u16> {
        let channel = machine.open_channel().ok()?;
        let consume = basic::Consume {
            queue: ShortStr::truncated(REPLY_TO),
            no_ack: true,
            ..Default::default()
        };
        machine.send(channel, &consume).ok()?;
        self.channel = Some(channel);
        self.takes_replies = false;
        Some(channel)
    }

    /// Replies will come.
    pub(crate) fn consuming(&mut self) {
        self.takes_replies = true;
    }

    /// Sends what could not go out before. True if something is left.
    pub(crate) fn pump(&mut self, machine: &mut Machine, wakeups: &mut Wakeups) -> bool {
        let Some(channel) = self.channel else { return false };
        while let Some(&number) = self.queued.front() {
            let Some(call) = self.open.get_mut(&number) else {
                self.queued.pop_front();
                continue;
            };
            let message = call.message.take().expect("what is queued was not sent");
            let message = message.reply_to(REPLY_TO).correlation_id(number.to_string());
            self.properties.clear();
            message.encode_properties(&mut self.properties, "", false, None);
            let sent = machine.publish(
                channel,
                ShortStr::truncated(&call.exchange),
                ShortStr::truncated(&call.routing_key),
                true,
                RawProperties::trusted(&self.properties),
                &message.body,
            );
            match sent {
                Ok(_) => drop(self.queued.pop_front()),
                Err(PublishError::Full | PublishError::NotOpen) => {
                    call.message = Some(message);
                    return true;
                }
                Err(PublishError::PropertiesTooLong { bytes, bytes_max }) => {
                    self.queued.pop_front();
                    let too_long = TooLong::properties(bytes, bytes_max);
                    self.answer(number, Err(CallError::TooLong(too_long)), wakeups);
                }
            }
        }
        false
    }

    /// A reply came. One that nobody waits for, because its caller gave up, is dropped.
    pub(crate) fn replied(&mut self, delivery: &Delivery<'_>, now_us: u64, wakeups: &mut Wakeups) {
        if let Some(number) = number_of(delivery.properties) {
            if let Some(call) = self.open.get(&number).filter(|call| call.answer.is_none()) {
                self.metrics.reply_latency.add(now_us.saturating_sub(call.asked_at_us));
            }
            self.answer(number, Ok(Received::from_delivery(delivery)), wakeups);
        }
    }

    /// No queue took a request.
    pub(crate) fn returned(&mut self, returned: &Returned<'_>, wakeups: &mut Wakeups) {
        if let Some(number) = number_of(returned.properties) {
            let why = Refusal { code: returned.reply_code, text: returned.reply_text.to_string() };
            self.answer(number, Err(CallError::Unroutable(why)), wakeups);
        }
    }

    /// The broker closed the channel: no reply will find it. True: another one may be opened at once. A broker that does
    /// not let us have replies would close that, too; then nothing waits any more, and the next call asks again.
    pub(crate) fn channel_closed(&mut self, why: &Refusal, wakeups: &mut Wakeups) -> bool {
        self.channel = None;
        if !self.takes_replies {
            self.queued.clear();
            self.open.values_mut().for_each(|call| call.message = None);
        }
        self.fail_sent(&CallError::ChannelClosed(why.clone()), wakeups);
        self.takes_replies
    }

    /// The connection broke; what was not sent waits for the next one.
    pub(crate) fn lost(&mut self, lost: &Lost, wakeups: &mut Wakeups) {
        self.channel = None;
        self.fail_sent(&CallError::Lost(lost.clone()), wakeups);
    }

    /// There will be no other connection.
    pub(crate) fn give_up(&mut self, lost: &Lost, wakeups: &mut Wakeups) {
        self.over = Some(lost.clone());
        self.queued.clear();
        for call in self.open.values_mut() {
            call.message = None;
        }
        self.lost(lost, wakeups);
    }

    fn fail_sent(&mut self, error: &CallError, wakeups: &mut Wakeups) {
        let sent =
            self.open.values_mut().filter(|call| call.message.is_none() && call.answer.is_none());
        for call in sent {
            self.metrics.failed += 1;
            call.answer = Some(Err(error.clone()));
            wakeups.extend(call.waker.take());
        }
    }

    fn answer(&mut self, number: u64, answer: Answer, wakeups: &mut Wakeups) {
        if let Some(call) = self.open.get_mut(&number)
            && call.answer.is_none()
        {
            self.metrics.failed += u64::from(answer.is_err());
            call.answer = Some(answer);
            wakeups.extend(call.waker.take());
        }
    }
}

fn number_of(properties: RawProperties<'_>) -> Option<u64> {
    properties.parse().correlation_id?.to_str()?.parse().ok()
}
