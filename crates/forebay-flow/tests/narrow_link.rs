//! The self-tuned window before a link that carries little.
//!
//! ```text
//!  publishers ──▶ window ──▶ socket ──▶ TCP, a share of two pipes full ──▶ link, one queue ──▶ broker
//!                            unsent                                                              │
//!       ◀──────────────────────── confirm and acknowledgement, a round trip later ───────────────┘
//! ```

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_flow::{
    Amount, BrokerKind, CommitTime, KernelReading, Load, Pfw, PfwOptions, Sample, Window,
};

const RTT_US: u64 = 33_000;
const SEGMENT_BYTES: u64 = 1_448;
/// What a message takes on the way beside its body.
const OVERHEAD_BYTES: u64 = 90;
const S: u64 = 1_000_000;

struct Publisher {
    window: Pfw,
    /// Admission, and when it was handed to the link.
    in_flight: VecDeque<(u64, Option<u64>)>,
    /// Of these, on the way.
    sent: usize,
    rtt_us: f64,
    read_us: u64,
    /// Of the seconds that count.
    confirmed: u64,
}

struct Narrow {
    bytes_per_s: u64,
    body_bytes: u64,
    publishers: Vec<Publisher>,
    free_us: u64,
    arrivals: BinaryHeap<Reverse<(u64, usize)>>,
}

impl Narrow {
    /// `told`: the broker tells how many publishers it has.
    fn new(publishers: usize, bytes_per_s: u64, body_bytes: u64, told: bool) -> Narrow {
        let others = publishers as u32;
        let publisher = |seed| {
            let mut window = Pfw::new(PfwOptions { seed, ..PfwOptions::default() });
            window.broker(BrokerKind::FairVisits { bytes: 65_536 });
            if told {
                window.commit_time(CommitTime { publishers: others, ..CommitTime::default() });
            }
            window.network(0, Some(KernelReading::of(RTT_US)));
            let in_flight = VecDeque::new();
            Publisher {
                window,
                in_flight,
                sent: 0,
                rtt_us: RTT_US as f64,
                read_us: 0,
                confirmed: 0,
            }
        };
        let publishers = (0..publishers as u64).map(publisher).collect();
        Narrow { bytes_per_s, body_bytes, publishers, free_us: 0, arrivals: BinaryHeap::new() }
    }

    fn message_bytes(&self) -> u64 {
        self.body_bytes + OVERHEAD_BYTES
    }

    /// Admits what the window lets in and hands TCP what it takes.
    fn fill(&mut self, now_us: u64, index: usize) {
        let message_bytes = self.message_bytes();
        let pipe_bytes = 2 * self.bytes_per_s * RTT_US / S / self.publishers.len() as u64;
        let tcp_bytes = pipe_bytes.max(4 * SEGMENT_BYTES);
        let publisher = &mut self.publishers[index];
        let load = |messages: usize| Load {
            in_flight: Amount::new(messages as u32, messages as u64 * self.body_bytes),
            waiting: true,
        };
        let body = Amount::message(self.body_bytes);
        while publisher.window.may_send(load(publisher.in_flight.len()).in_flight, body) {
            publisher.in_flight.push_back((now_us, None));
            publisher.window.sent(now_us, load(publisher.in_flight.len()));
        }
        while publisher.sent < publisher.in_flight.len()
            && publisher.sent as u64 * message_bytes < tcp_bytes
        {
            publisher.in_flight[publisher.sent].1 = Some(now_us);
            publisher.sent += 1;
            self.free_us = self.free_us.max(now_us) + message_bytes * S / self.bytes_per_s;
            self.arrivals.push(Reverse((self.free_us + RTT_US, index)));
        }
    }

    fn confirm(&mut self, now_us: u64, index: usize) -> u64 {
        let message_bytes = self.message_bytes();
        let publisher = &mut self.publishers[index];
        let (admitted_us, sent_us) = publisher.in_flight.pop_front().expect("it was sent");
        publisher.sent -= 1;
        let way_us = (now_us - sent_us.expect("it was sent")) as f64;
        publisher.rtt_us += (way_us - publisher.rtt_us) / 8.0;
        if now_us >= publisher.read_us + S / 10 {
            publisher.read_us = now_us;
            let unsent = (publisher.in_flight.len() - publisher.sent) as u64;
            let rtt = KernelReading::of(publisher.rtt_us as u64);
            let reading = KernelReading { unsent_bytes: unsent * message_bytes, ..rtt };
            publisher.window.network(now_us, Some(reading));
        }
        let messages = publisher.in_flight.len();
        let in_flight = Amount::new(messages as u32, messages as u64 * self.body_bytes);
        let sample = Sample { rtt_us: now_us - admitted_us, bytes: self.body_bytes };
        publisher.window.confirmed(now_us, sample, Load { in_flight, waiting: true });
        now_us - admitted_us
    }

    /// From so many seconds on, for ten: the share of the link that is used, the mean latency in milliseconds, and Jain's index
    /// of what each publisher has.
    fn run(mut self, from_s: u64) -> (f64, f64, f64) {
        (0..self.publishers.len()).for_each(|index| self.fill(0, index));
        let (mut confirmed, mut latency_us) = (0, 0);
        while let Some(Reverse((now_us, index))) =
            self.arrivals.pop().filter(|next| next.0.0 < (from_s + 10) * S)
        {
            let took_us = self.confirm(now_us, index);
            if now_us >= from_s * S {
                confirmed += 1;
                self.publishers[index].confirmed += 1;
                latency_us += took_us;
            }
            self.fill(now_us, index);
        }
        let shares: Vec<f64> =
            self.publishers.iter().map(|publisher| publisher.confirmed as f64).collect();
        let share = (confirmed * self.message_bytes()) as f64 / (10 * self.bytes_per_s) as f64;
        (share, latency_us as f64 / confirmed as f64 / 1e3, jain(&shares))
    }
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Eight messages each would be 370, 670 and 6500 ms, and a visit to each of twenty a second. Of twenty windows of one and two
/// some have twice what others do for a while.
#[test]
fn a_narrow_link_is_full_and_nothing_waits_long_before_it() {
    for (publishers, bytes_per_s, body_bytes, most_ms) in [
        (1, 125_000, 5_000, 130.0),
        (1, 125_000, 200, 150.0),
        (20, 125_000, 200, 200.0),
        (20, 1_250_000, 5_000, 180.0),
        (20, 1_250_000, 200, 180.0),
        (20, 12_500_000, 5_000, 150.0),
        (20, 125_000, 5_000, 5_000.0),
    ] {
        for told in [false, true] {
            let narrow = Narrow::new(publishers, bytes_per_s, body_bytes, told);
            let (share, mean_ms, fair) = narrow.run(7);
            let cell = format!(
                "{publishers} x {body_bytes} B, {bytes_per_s} B/s, {told}: {mean_ms:.0} ms"
            );
            assert!(share >= 0.95, "{cell}, {share:.2} of the link");
            assert!(mean_ms <= most_ms, "{cell}");
            assert!(fair >= 0.9, "{cell}, fairness {fair:.2}");
        }
    }
}
