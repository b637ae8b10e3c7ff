//! The self-tuned window over a distance, before a broker that confirms many messages at once.
//!
//! ```text
//!  program ──▶ gate, window ──▶ 16.5 ms ──▶ broker, 40 µs a message ─┐ confirmed when nothing waits any more,
//!     ▲                                                             │ or 25 ms after the first
//!     └──────────────────────────── 16.5 ms ◀───────────────────────┘
//! ```
//! What is confirmed together is published together, if nothing is done about it: the broker rests while
//! confirms and messages travel, and a window of W carries W in 33 ms + W x 40 µs.

use std::collections::VecDeque;

use forebay_flow::{
    Admission, Amount, BrokerKind, Fixed, Gate, KernelReading, Pfw, PfwOptions, Sample,
    WAITERS_MAX, Window,
};

const WAY_US: u64 = 16_500;
const SERVICE_US: u64 = 40;
const CONFIRM_US: u64 = 25_000;
const STEP_US: u64 = 50;
const S: u64 = 1_000_000;
const BODY: Amount = Amount { messages: 1, bytes: 200 };

struct Way {
    gate: Gate,
    window: Box<dyn Window>,
    admitted_us: VecDeque<u64>,
    waits: bool,
    written: VecDeque<(u64, usize)>,
    confirms: VecDeque<(u64, usize)>,
    queued: usize,
    /// Taken in by the broker and not confirmed, since when.
    taken: usize,
    taken_us: u64,
    free_us: u64,
}

impl Way {
    fn new(mut window: Box<dyn Window>) -> Way {
        window.network(0, Some(KernelReading::of(2 * WAY_US)));
        Way {
            gate: Gate::new(window.window(), WAITERS_MAX),
            window,
            admitted_us: VecDeque::new(),
            waits: false,
            written: VecDeque::new(),
            confirms: VecDeque::new(),
            queued: 0,
            taken: 0,
            taken_us: 0,
            free_us: 0,
        }
    }

    /// The program always has another message.
    fn publish(&mut self, now_us: u64) {
        let before = self.admitted_us.len();
        loop {
            if self.waits {
                if self.gate.next_admitted(now_us).is_none() {
                    break;
                }
                self.waits = false;
            } else if self.gate.ask(now_us, BODY, None) != Admission::Admitted {
                self.waits = true;
                break;
            }
            self.admitted_us.push_back(now_us);
            self.window.sent(now_us, self.gate.load());
            self.gate.set_window(self.window.window());
        }
        let messages = self.admitted_us.len() - before;
        if messages > 0 {
            self.written.push_back((now_us + WAY_US, messages));
        }
    }

    /// Latencies of what was confirmed.
    fn confirmed(&mut self, now_us: u64) -> Vec<u64> {
        let mut latencies_us = Vec::new();
        while let Some((_, messages)) = self.confirms.pop_front_if(|next| next.0 <= now_us) {
            for _ in 0..messages {
                let rtt_us = now_us - self.admitted_us.pop_front().expect("it was sent");
                self.gate.settle(BODY);
                let sample = Sample { rtt_us, bytes: BODY.bytes };
                self.window.confirmed(now_us, sample, self.gate.load());
                latencies_us.push(rtt_us);
            }
            self.gate.set_window(self.window.window());
            self.gate.set_pace(now_us, self.window.pace());
        }
        latencies_us
    }

    fn broker(&mut self, now_us: u64) {
        while let Some((_, messages)) = self.written.pop_front_if(|next| next.0 <= now_us) {
            self.queued += messages;
        }
        while self.queued > 0 && self.free_us <= now_us {
            self.free_us = self.free_us.max(now_us - STEP_US) + SERVICE_US;
            self.queued -= 1;
            if self.taken == 0 {
                self.taken_us = now_us;
            }
            self.taken += 1;
        }
        if self.taken > 0 && (self.queued == 0 || now_us >= self.taken_us + CONFIRM_US) {
            self.confirms.push_back((now_us + WAY_US, std::mem::take(&mut self.taken)));
        }
    }

    /// Of the last five of ten seconds: messages a second, their mean latency in milliseconds, and whether there was a pace.
    fn run(mut self) -> (f64, f64, bool) {
        let (mut messages, mut sum_us) = (0, 0);
        self.publish(0);
        for now_us in (0..10 * S).step_by(STEP_US as usize) {
            if now_us.is_multiple_of(S / 10) {
                self.window.network(now_us, Some(KernelReading::of(2 * WAY_US + now_us / S)));
            }
            self.broker(now_us);
            let latencies_us = self.confirmed(now_us);
            if !latencies_us.is_empty()
                || self.gate.next_paced_us().is_some_and(|due_us| due_us <= now_us)
            {
                self.publish(now_us);
            }
            if now_us >= 5 * S {
                messages += latencies_us.len();
                sum_us += latencies_us.iter().sum::<u64>();
            }
        }
        (messages as f64 / 5.0, sum_us as f64 / messages as f64 / 1e3, self.window.pace().is_some())
    }
}

/// Without a pace it has 7600 a second at 47 ms.
#[test]
fn what_is_confirmed_together_does_not_leave_together() {
    let (fixed_per_s, fixed_ms, _) = Way::new(Box::new(Fixed::new(Amount::new(1_000, S)))).run();
    assert!(fixed_per_s <= 18_750.0, "{fixed_per_s:.0} of 25000/s: this broker makes no clumps");
    let (per_s, mean_ms, is_paced) = Way::new(Box::new(Pfw::new(PfwOptions::default()))).run();
    assert!(is_paced && per_s >= 15_000.0, "{per_s:.0} of 25000/s at {mean_ms:.0} ms");
    assert!(mean_ms <= 0.85 * fixed_ms, "{mean_ms:.0} ms; a window of 1000 has {fixed_ms:.0} ms");
}

/// Ours confirms each commit, and reads as much as there is of a connection: what comes little by little is dear.
#[test]
fn to_a_broker_that_tells_its_visits_nothing_is_paced() {
    let mut window = Pfw::new(PfwOptions::default());
    window.broker(BrokerKind::FairVisits { bytes: 65_536 });
    let (_, _, is_paced) = Way::new(Box::new(window)).run();
    assert!(!is_paced);
}
