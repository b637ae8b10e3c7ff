//! One CPU that visits connections in turn, and a log that commits what they brought.

use std::collections::VecDeque;

use forebay_flow::CommitCost;

use super::random::Random;
use super::{Agenda, Cell, Event, at};

const BATCH_MAX: u32 = 4_096;
const BUDGET_MIN: f64 = 256.0;
const BIN_US: u64 = 250_000;
/// Of a message.
const COMMITTED_BYTES: u64 = 400;

pub struct Broker {
    cell: Cell,
    sockets: Vec<u32>,
    turn: VecDeque<usize>, // flows with something in their sockets
    visiting: Option<(usize, u32)>,
    pending: VecDeque<(usize, u32)>,
    committing: Option<Vec<(usize, u32)>>,
    commit_started_us: u64,
    ingested: u32, // read and not committed
    commit_us: f64,
    pub commit_cost: CommitCost,
    bins: [u32; 4],
    bin: u64,
    last_confirm_us: Vec<u64>,
    /// What publishers without confirms brought since the count began.
    pub flooded: u64,
}

impl Broker {
    pub fn new(cell: &Cell) -> Broker {
        Broker {
            cell: cell.clone(),
            sockets: [vec![0; cell.flows], vec![u32::MAX; cell.floods]].concat(),
            turn: (cell.flows..cell.flows + cell.floods).collect(),
            visiting: None,
            pending: VecDeque::new(),
            committing: None,
            commit_started_us: 0,
            ingested: 0,
            commit_us: at(&cell.fsync_us, 0) as f64,
            commit_cost: CommitCost::default(),
            bins: [0; 4],
            bin: 0,
            last_confirm_us: vec![0; cell.flows],
            flooded: 0,
        }
    }

    pub fn arrived(&mut self, flow: usize, messages: u32) {
        if self.sockets[flow] == 0 {
            self.turn.push_back(flow);
        }
        self.sockets[flow] += messages;
    }

    /// Starts the next visit if the CPU is free and the budget allows one.
    pub fn work(&mut self, now_us: u64, agenda: &mut Agenda) {
        let budget = self.budget();
        if self.visiting.is_some() || self.ingested >= budget {
            return;
        }
        let quantum = (budget / (self.turn.len() as u32).max(1)).clamp(8, 64);
        let Some(flow) = self.turn.pop_front() else { return };
        let messages = self.sockets[flow].min(quantum);
        if flow < self.cell.flows {
            self.sockets[flow] -= messages;
        }
        if self.sockets[flow] > 0 {
            self.turn.push_back(flow);
        }
        self.visiting = Some((flow, messages));
        self.ingested += messages;
        let costs = self.cell.costs;
        let crowded = 1.0 + f64::from(self.ingested) / 60_000.0;
        let cost_us = (costs.visit_us + costs.message_us * f64::from(messages)) * crowded;
        agenda.set(now_us + cost_us as u64, Event::VisitDone);
    }

    pub fn visit_done(&mut self, now_us: u64, random: &mut Random, agenda: &mut Agenda) {
        self.pending.extend(self.visiting.take());
        self.commit(now_us, random, agenda);
        self.work(now_us, agenda);
    }

    pub fn commit_done(&mut self, now_us: u64, random: &mut Random, agenda: &mut Agenda) {
        let batch = self.committing.take().expect("a commit ends that began");
        self.commit_us += 0.1 * ((now_us - self.commit_started_us) as f64 - self.commit_us);
        let way_us = at(&self.cell.rtt_us, now_us) / 2;
        let mut committed = 0;
        for (flow, messages) in batch {
            committed += messages;
            if flow >= self.cell.flows {
                self.flooded += u64::from(messages) * u64::from(now_us >= self.cell.warm_us);
                continue;
            }
            // A shorter route does not overtake: TCP delivers in order.
            let at_us = (now_us + way_us).max(self.last_confirm_us[flow]);
            self.last_confirm_us[flow] = at_us;
            agenda.set(at_us, Event::Confirm { flow, messages });
        }
        let took_us = now_us - self.commit_started_us;
        self.commit_cost.committed(took_us, u64::from(committed) * COMMITTED_BYTES);
        self.ingested -= committed;
        let bin = now_us / BIN_US;
        for passed in self.bin + 1..=bin {
            self.bins[(passed % 4) as usize] = 0;
        }
        self.bin = bin;
        self.bins[(bin % 4) as usize] += committed;
        self.commit(now_us, random, agenda);
        self.work(now_us, agenda);
    }

    fn commit(&mut self, now_us: u64, random: &mut Random, agenda: &mut Agenda) {
        if self.committing.is_some() || self.pending.is_empty() {
            return;
        }
        let mut batch: Vec<(usize, u32)> = Vec::new();
        let mut messages = 0;
        while let Some(&(flow, more)) = self.pending.front() {
            if messages + more > BATCH_MAX {
                break;
            }
            messages += more;
            self.pending.pop_front();
            match batch.iter_mut().find(|(known, _)| *known == flow) {
                Some((_, sum)) => *sum += more,
                None => batch.push((flow, more)),
            }
        }
        let fsync_us = at(&self.cell.fsync_us, now_us) as f64;
        let slow = if random.below(100) == 0 { 5.0 } else { 1.0 };
        let time_us = fsync_us * (0.8 + 0.4 * random.share()) * slow
            + self.cell.costs.commit_message_us * f64::from(messages);
        let mut end_us = now_us + time_us as u64;
        if let Some((from_us, to_us)) = self.cell.stall_us
            && (from_us..to_us).contains(&end_us)
        {
            end_us = to_us;
        }
        self.commit_started_us = now_us;
        self.committing = Some(batch);
        agenda.set(end_us, Event::CommitDone);
    }

    fn budget(&self) -> u32 {
        let per_s = 4.0 * f64::from(self.bins.iter().copied().max().unwrap_or(0));
        let budget = per_s * (3.0 * self.commit_us).max(5_000.0) / 1e6;
        budget.max(BUDGET_MIN) as u32
    }
}
