//! A publisher on its own connection: the real gate and a real window, and a program that wants to publish.

use std::collections::VecDeque;

use forebay_flow::{
    Admission, Amount, CommitTime, Gate, KernelReading, Sample, WAITERS_MAX, Window,
};

use super::outcome::Outcome;
use super::random::Random;
use super::{Agenda, Cell, Event, Kernel, at};

const BYTES: u64 = 200;
const POLL_US: u64 = 100_000;

pub struct Flow {
    index: usize,
    cell: Cell,
    pub gate: Gate,
    pub window: Box<dyn Window>,
    due_us: f64, // when the program wants to publish next
    timer: bool,
    waiting_since_us: Option<u64>,
    in_flight: VecDeque<(u64, u64)>, // sent, called
    last_arrival_us: u64,
    kernel_us: f64,
    first_kernel_us: u64,
    latency_us: f64, // of confirms, smoothed as the kernel smooths
    polled_us: u64,
    told: CommitTime,
    pub confirmed: u64,
}

impl Flow {
    pub fn new(index: usize, cell: &Cell, start_us: u64, window: Box<dyn Window>) -> Flow {
        let rtt_us = at(&cell.rtt_us, 0);
        let mut flow = Flow {
            index,
            cell: cell.clone(),
            gate: Gate::new(window.window(), WAITERS_MAX),
            window,
            due_us: start_us as f64,
            timer: true,
            waiting_since_us: None,
            in_flight: VecDeque::new(),
            last_arrival_us: 0,
            kernel_us: rtt_us as f64,
            first_kernel_us: rtt_us,
            latency_us: rtt_us as f64,
            polled_us: 0,
            told: CommitTime::default(),
            confirmed: 0,
        };
        let reading = flow.reading(&mut Random(index as u64));
        flow.window.network(0, reading.map(KernelReading::of));
        flow
    }

    /// Publishes what is due and may pass, in one write.
    pub fn publish(&mut self, now_us: u64, agenda: &mut Agenda) {
        if self.due_us <= now_us as f64 {
            self.timer = false;
        }
        let mut written = 0;
        while let Some((_, amount)) = self.gate.next_admitted(now_us) {
            let called_us = self.waiting_since_us.take().expect("who is admitted has waited");
            self.send(now_us, called_us, amount);
            written += 1;
        }
        while self.waiting_since_us.is_none() && self.due_us <= now_us as f64 {
            if let Some((from_us, to_us)) = self.cell.idle_us
                && (from_us..to_us).contains(&now_us)
            {
                self.due_us = to_us as f64;
                break;
            }
            self.due_us += 1e6 / self.cell.rate_per_s;
            match self.gate.ask(now_us, Amount::message(BYTES), None) {
                Admission::Admitted => {
                    self.send(now_us, now_us, Amount::message(BYTES));
                    written += 1;
                }
                Admission::Waiting(_) => self.waiting_since_us = Some(now_us),
                Admission::Refused => unreachable!("one waiter at a time"),
            }
        }
        if written > 0 {
            let way_us = at(&self.cell.rtt_us, now_us) / 2;
            self.last_arrival_us = self.last_arrival_us.max(now_us + way_us);
            let event = Event::Arrive { flow: self.index, messages: written };
            agenda.set(self.last_arrival_us, event);
        }
        if self.waiting_since_us.is_none() && !self.timer {
            self.timer = true;
            agenda.set(self.due_us.ceil() as u64, Event::Publish { flow: self.index });
        }
    }

    fn send(&mut self, now_us: u64, called_us: u64, _amount: Amount) {
        self.in_flight.push_back((now_us, called_us));
        self.window.sent(now_us, self.gate.load());
    }

    pub fn confirmed(
        &mut self,
        now_us: u64,
        messages: u32,
        random: &mut Random,
        outcome: &mut Outcome,
    ) {
        self.kernel_us += (at(&self.cell.rtt_us, now_us) as f64 - self.kernel_us) / 8.0;
        if now_us >= self.polled_us + POLL_US {
            self.polled_us = now_us;
            let reading = self.reading(random);
            let least_rtt_us = self.first_kernel_us;
            let with_least = |rtt_us| KernelReading { least_rtt_us, ..KernelReading::of(rtt_us) };
            self.window.network(now_us, reading.map(with_least));
        }
        for _ in 0..messages {
            let (sent_us, called_us) = self.in_flight.pop_front().expect("confirmed once");
            self.gate.settle(Amount::message(BYTES));
            self.latency_us += ((now_us - sent_us) as f64 - self.latency_us) / 8.0;
            let sample = Sample { rtt_us: now_us - sent_us, bytes: BYTES };
            self.window.confirmed(now_us, sample, self.gate.load());
            outcome.confirmed(now_us, now_us - called_us);
            if now_us >= self.cell.warm_us {
                self.confirmed += 1;
            }
        }
        self.gate.set_window(self.window.window());
    }

    /// The broker tells what its commits cost.
    pub fn told(&mut self, told: CommitTime) {
        if told.differs(self.told) {
            self.told = told;
            self.window.commit_time(told);
        }
    }

    fn reading(&self, random: &mut Random) -> Option<u64> {
        let wobble = random.share();
        let right = self.kernel_us + 3.0 * wobble;
        match self.cell.kernel {
            Kernel::Right => Some(right as u64),
            Kernel::Off => None,
            Kernel::Zero => Some(0),
            Kernel::FrozenAtFirst => Some(self.first_kernel_us),
            Kernel::Noisy(share) => Some((right * (1.0 + share * (2.0 * wobble - 1.0))) as u64),
            Kernel::Scaled(factor) => Some((right * factor) as u64),
            Kernel::Late => Some((self.latency_us * (0.8 + 0.2 * wobble)) as u64),
        }
    }
}
