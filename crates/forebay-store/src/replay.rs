//! Replay: what the records of a log add up to.
//!
//! Pure: records go in, in order; out comes the state they describe. A message is alive if it was
//! published and neither acknowledged nor moved into a run; a run is alive while anything in it is.

use std::collections::BTreeMap;

use crate::home::{QueueId, RunId, Seq};
use crate::log::{Map, QueueState};
use crate::range_set::RangeSet;
use crate::record::{Record, SpillRecord};
use crate::run::Footer;
use crate::runs_by_span::RunsBySpan;

/// Where a live message's record is.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The segment.
    pub(crate) epoch: u64,
    /// Offset of the record in it.
    pub(crate) offset: u64,
}

#[derive(Debug, Default)]
pub(crate) struct ReplayedQueue {
    pub(crate) state: QueueState,
    pub(crate) messages: BTreeMap<Seq, Place>,
}

#[derive(Debug)]
pub(crate) struct ReplayedRun {
    pub(crate) queue: QueueId,
    pub(crate) footer: Footer,
    pub(crate) live: RangeSet,
}

impl ReplayedRun {
    fn new(spill: &SpillRecord<'_>) -> ReplayedRun {
        let mut live = RangeSet::default();
        for (first, last) in spill.live.iter() {
            live.insert(first, last);
        }
        ReplayedRun { queue: spill.queue, footer: spill.footer, live }
    }
}

/// The state so far.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    pub(crate) meta: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) queues: Map<QueueId, ReplayedQueue>,
    pub(crate) runs: BTreeMap<RunId, ReplayedRun>,
    /// Runs of each queue: acknowledgements name the queue only.
    runs_of: Map<QueueId, RunsBySpan>,
    /// The largest run number met.
    pub(crate) last_run: u32,
    /// The newest record is the end of a clean stop.
    pub(crate) clean: bool,
    /// Checkpoints met with their ends.
    pub(crate) checkpoints: u64,
    staged: Option<Staged>,
    /// Records met, for reports.
    pub(crate) records: u64,
}

/// A checkpoint whose end was not met yet.
#[derive(Debug, Default)]
struct Staged {
    records: u64,
    meta: BTreeMap<Vec<u8>, Vec<u8>>,
    queues: Vec<(QueueId, QueueState)>,
    runs: BTreeMap<RunId, ReplayedRun>,
}

impl Replay {
    /// One more record, which lies at `place`.
    pub(crate) fn apply(&mut self, place: Place, record: Record<'_>) {
        self.records += 1;
        self.clean = record == Record::Stop;
        match record {
            Record::Publish { queues, .. } => {
                for (queue, seq) in queues.iter() {
                    let queue = self.queues.entry(queue).or_default();
                    queue.state.next_seq = queue.state.next_seq.max(seq + 1);
                    queue.messages.insert(seq, place);
                }
            }
            Record::Ack { queue, ranges } => {
                for (first, last) in ranges.iter() {
                    self.acknowledge(queue, first, last);
                }
            }
            Record::MetaPut { key, value } => {
                self.meta.insert(key.to_vec(), value.to_vec());
            }
            Record::MetaDelete { key } => {
                self.meta.remove(key);
            }
            Record::Spill(spill) => {
                let run = ReplayedRun::new(&spill);
                if let Some(queue) = self.queues.get_mut(&spill.queue) {
                    for (first, last) in run.live.iter() {
                        take_range(&mut queue.messages, first, last);
                    }
                }
                self.insert_run(spill.run, run);
            }
            Record::RunDrop { run } => self.remove_run(run),
            Record::Forget { queue } => {
                self.queues.remove(&queue);
                for run in self.runs_of.remove(&queue).unwrap_or_default().ids() {
                    self.runs.remove(&run);
                }
            }
            Record::Delivered { queue, upto } => {
                if let Some(queue) = self.queues.get_mut(&queue) {
                    queue.state.delivered_upto = upto;
                }
            }
            Record::Stop => {}
            Record::CheckpointBegin => self.staged = Some(Staged::default()),
            Record::CheckpointMeta { key, value } => {
                if let Some(staged) = &mut self.staged {
                    staged.records += 1;
                    staged.meta.insert(key.to_vec(), value.to_vec());
                }
            }
            Record::CheckpointQueue { queue, next_seq, delivered_upto } => {
                if let Some(staged) = &mut self.staged {
                    staged.records += 1;
                    staged.queues.push((queue, QueueState { next_seq, delivered_upto }));
                }
            }
            Record::CheckpointRun(spill) => {
                if let Some(staged) = &mut self.staged {
                    staged.records += 1;
                    staged.runs.insert(spill.run, ReplayedRun::new(&spill));
                }
            }
            Record::CheckpointEnd { records } => {
                if let Some(staged) = self.staged.take()
                    && staged.records == records
                {
                    self.adopt(staged);
                }
            }
        }
    }

    /// Bytes are missing here: a checkpoint that was being read is not whole.
    pub(crate) fn gap(&mut self) {
        self.staged = None;
        self.clean = false;
    }

    /// A whole checkpoint: its state replaces ours, which in a sound log is the same; messages stay.
    fn adopt(&mut self, staged: Staged) {
        self.checkpoints += 1;
        self.meta = staged.meta;
        let mut before = std::mem::take(&mut self.queues);
        for (id, state) in staged.queues {
            let messages = before.remove(&id).map(|queue| queue.messages).unwrap_or_default();
            self.queues.insert(id, ReplayedQueue { state, messages });
        }
        self.runs.clear();
        self.runs_of.clear();
        for (id, run) in staged.runs {
            self.insert_run(id, run);
        }
        // Where the SPILL of a run was among what is missing, its messages would be in both places.
        for run in self.runs.values() {
            if let Some(queue) = self.queues.get_mut(&run.queue) {
                for (first, last) in run.live.iter() {
                    take_range(&mut queue.messages, first, last);
                }
            }
        }
    }

    fn insert_run(&mut self, id: RunId, run: ReplayedRun) {
        self.last_run = self.last_run.max(id.0);
        // One that is named again is another one: numbers begin again, and a log may be forged.
        self.remove_run(id);
        self.runs_of.entry(run.queue).or_default().insert(id, &run.footer);
        self.runs.insert(id, run);
    }

    fn remove_run(&mut self, id: RunId) {
        if let Some(run) = self.runs.remove(&id)
            && let Some(runs) = self.runs_of.get_mut(&run.queue)
        {
            runs.remove(id, &run.footer);
        }
    }

    fn acknowledge(&mut self, queue: QueueId, first: Seq, last: Seq) {
        if let Some(queue) = self.queues.get_mut(&queue) {
            take_range(&mut queue.messages, first, last);
        }
        let Some(runs) = self.runs_of.get(&queue) else { return };
        let mut empty = Vec::new();
        for id in runs.meeting(first, last) {
            let Some(run) = self.runs.get_mut(&id) else { continue };
            if run.live.remove(first, last) > 0 && run.live.is_empty() {
                empty.push(id);
            }
        }
        for id in empty {
            self.remove_run(id);
        }
    }
}

fn take_range(messages: &mut BTreeMap<Seq, Place>, first: Seq, last: Seq) {
    if first == last {
        messages.remove(&first);
        return;
    }
    while let Some((&seq, _)) = messages.range(first..=last).next() {
        messages.remove(&seq);
    }
}
