//! One publisher: how much it may send now, and how long its confirms took.
//!
//! Two modes. *Unlimited*: as much as window and socket take; a message's send time is when it was
//! written to the buffer. *Rate*: message k is due at `start + k / rate`; that is its send time even
//! if it leaves later, so waiting for a window or a slow broker counts as latency.

use forebay_client::machine::{Machine, PublishError, Settled};
use forebay_wire::{Properties, RawProperties, ShortStr};

use crate::latency::Latency;
use crate::plan::Plan;

/// Bytes that one turn adds for one publisher, so that a thousand of them take turns.
const TURN_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Publisher {
    pub(crate) channel: u16,
    routing_key: String,
    properties: Vec<u8>,
    body: Vec<u8>,
    /// Most unconfirmed; `None`: no confirms.
    window: Option<u64>,
    unconfirmed: u64,
    /// Send times by sequence number modulo length, which is at least the window.
    sent_us: Box<[u64]>,
    /// Microseconds between messages; `None`: unlimited.
    interval_us: Option<f64>,
    start_us: u64,
    /// Messages it may still publish.
    left: u64,
    pub(crate) published: u64,
    pub(crate) confirmed: u64,
    pub(crate) rejected: u64,
}

impl Publisher {
    pub(crate) fn new(plan: &Plan, number: usize) -> Publisher {
        let mut properties = Vec::new();
        let delivery_mode = Some(if plan.persistent { 2 } else { 1 });
        Properties { delivery_mode, ..Default::default() }.encode(&mut properties);
        let window = (plan.window > 0).then_some(plan.window);
        let share = plan.messages / plan.publishers as u64;
        let extra = u64::from((number as u64) < plan.messages % plan.publishers as u64);
        Publisher {
            channel: 0,
            routing_key: plan.queue(number),
            properties,
            body: vec![b'.'; plan.size],
            window,
            unconfirmed: 0,
            sent_us: vec![0; window.map_or(0, |window| window.next_power_of_two() as usize)].into(),
            interval_us: (plan.rate > 0.0).then(|| 1e6 / plan.rate),
            start_us: 0,
            left: if plan.messages > 0 { share + extra } else { u64::MAX },
            published: 0,
            confirmed: 0,
            rejected: 0,
        }
    }

    /// Its own start: publishers with a rate are spread over one interval.
    pub(crate) fn start(&mut self, now_us: u64, number: usize, of: usize) {
        let phase = self.interval_us.map_or(0.0, |interval| interval * number as f64 / of as f64);
        self.start_us = now_us + phase as u64;
    }

    /// When its next message is due; `None`: at once.
    pub(crate) fn due_us(&self) -> Option<u64> {
        let interval_us = self.interval_us?;
        Some(self.start_us + (interval_us * self.published as f64) as u64)
    }

    /// Whether it has published and settled all it was asked to.
    pub(crate) fn is_done(&self) -> bool {
        self.left == 0 && (self.window.is_none() || self.unconfirmed == 0)
    }

    /// Whether the window has room and messages are left.
    pub(crate) fn has_room(&self) -> bool {
        self.left > 0 && self.window.is_none_or(|window| self.unconfirmed < window)
    }

    /// Writes what is due and fits into the send buffer. True: a turn's share was used up or the
    /// buffer is full, and there is more to do.
    pub(crate) fn publish(&mut self, machine: &mut Machine, now_us: u64) -> bool {
        let key = ShortStr::new(self.routing_key.as_bytes()).unwrap_or_default();
        let properties = RawProperties::trusted(&self.properties);
        let turn_bytes_max = machine.outgoing().len() + TURN_BYTES;
        let mut budget = self.room();
        while budget > 0 {
            let sent_us = match self.due_us() {
                Some(due_us) if due_us > now_us => return false,
                Some(due_us) => due_us,
                None => now_us,
            };
            if self.body.len() >= 8 {
                self.body[..8].copy_from_slice(&sent_us.to_le_bytes());
            }
            let published = machine.publish(
                self.channel,
                ShortStr::default(),
                key,
                false,
                properties,
                &self.body,
            );
            match published {
                Ok(sequence) => {
                    if !self.sent_us.is_empty() {
                        let mask = self.sent_us.len() - 1;
                        self.sent_us[sequence as usize & mask] = sent_us;
                        self.unconfirmed += 1;
                    }
                    self.published += 1;
                    self.left -= 1;
                    budget -= 1;
                }
                Err(PublishError::Full | PublishError::NotOpen) => return true,
            }
            if machine.outgoing().len() >= turn_bytes_max {
                return budget > 0;
            }
        }
        false
    }

    fn room(&self) -> u64 {
        self.window.map_or(self.left, |window| (window - self.unconfirmed).min(self.left))
    }

    /// Takes a confirm; neighbours with the same send time are recorded together.
    pub(crate) fn settle(&mut self, settled: Settled, now_us: u64, latency: &mut Latency) {
        self.unconfirmed -= settled.count();
        if !settled.acked {
            self.rejected += settled.count();
            return;
        }
        self.confirmed += settled.count();
        let mask = self.sent_us.len() - 1;
        let (mut run_us, mut run) = (0, 0);
        for sequence in settled.first..=settled.last {
            let sent_us = self.sent_us[sequence as usize & mask];
            if sent_us != run_us {
                if run > 0 {
                    latency.record(run_us, now_us, run);
                }
                (run_us, run) = (sent_us, 0);
            }
            run += 1;
        }
        latency.record(run_us, now_us, run);
    }
}
