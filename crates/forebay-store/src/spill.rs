//! Spilling: how messages move from the log, or from memory, into a run file, and leave it.
//!
//! ```text
//!   write_run ─► file written, synced ─► SPILL in a batch ─► batch durable ─► owner told ─► cold
//!                                                                │
//!                        the log's copies are needed until here ─┘
//! ```
//!
//! Until its owner was told, a message is settled with its old home, whatever became of it since, or with
//! the run as its home already: the run is asked first. An acknowledgement names queue and number only, so recovery finds the message
//! where it was at that point of the log.

use crate::event::Event;
use crate::home::{BatchNo, Home, QueueId, RunId, Seq};
use crate::log::{Log, Stopping};
use crate::record::{ACK_BYTES, RECORD_HEAD, SPILL_BYTES};
use crate::run::{FIRST_RECORD, RunBuilder, RunState, TrackedRun};

impl Log {
    pub(crate) fn write_run(&mut self, queue: QueueId, run: RunBuilder, durable: bool) -> RunId {
        let id = self.run_numbers.take();
        if self.failed.is_some() {
            return id;
        }
        let finished = run.finish(id, queue);
        self.runs_of.insert((queue, id));
        self.runs.insert(
            id,
            TrackedRun {
                queue,
                durable,
                state: RunState::Writing,
                footer: finished.footer,
                live: finished.live,
                transient: finished.transient,
                homes: finished.homes,
                dead_batch: 0,
                cursor: (0, FIRST_RECORD),
            },
        );
        self.moving.entry(queue).or_default().push(id);
        self.background.run_bytes += finished.bytes.len();
        self.background.run_writes.push_back((id, finished.bytes, durable));
        id
    }

    /// The run's file is written (and synced): the log is told, unless it ends already. Nothing may follow the STOP record
    /// there, and a file that the log does not know is deleted by the next start.
    pub(crate) fn run_written(&mut self, id: RunId) {
        if !matches!(self.stopping, Stopping::No | Stopping::Asked) {
            return;
        }
        let persistent = self.runs[&id].persistent();
        self.make_room(SPILL_BYTES + 16 * persistent.iter().count());
        let run = self.runs.get_mut(&id).expect("a run being written is tracked");
        if run.durable && !persistent.is_empty() {
            run.state = RunState::Spilling;
            self.open.writer().spill(id, run.queue, &run.footer, &persistent);
            self.open.urgent = true;
            self.spilling.push_back((self.open.number, id));
        } else {
            run.state = RunState::Switched;
            run.homes = Vec::new();
            let queue = run.queue;
            self.events.push_back(Event::RunDurable { run: id, queue });
        }
    }

    /// The run's SPILL record is durable: its live messages no longer need their segments.
    pub(crate) fn switch_run(&mut self, id: RunId, spilled_by: BatchNo) {
        let run = self.runs.get_mut(&id).expect("a spilling run is tracked");
        run.state = RunState::Switched;
        let queue = run.queue;
        let homes = std::mem::take(&mut run.homes);
        for (seq, home) in homes {
            if let Some(epoch) = home.as_segment()
                && self.runs[&id].live.contains(seq)
            {
                self.release(epoch, spilled_by);
            }
        }
        self.events.push_back(Event::RunDurable { run: id, queue });
    }

    /// The next event. Who takes that a run is durable knows it for its messages' home from here on.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        if let Event::RunDurable { run: id, queue } = event {
            if let Some(moving) = self.moving.get_mut(&queue) {
                moving.retain(|&run| run != id);
                if moving.is_empty() {
                    self.moving.remove(&queue);
                }
            }
            let run = self.runs.get_mut(&id).expect("a switched run is tracked");
            run.state = RunState::Cold;
            if run.live.is_empty() {
                self.retire_run(id);
            }
        }
        Some(event)
    }

    /// A message whose run is on its way to the disk: the owner knows its old home only.
    pub(crate) fn settle_moving(&mut self, queue: QueueId, seq: Seq, home: Home) -> bool {
        let Some(runs) = self.moving.get(&queue) else { return false };
        for &id in runs {
            let run = self.runs.get_mut(&id).expect("a moving run is tracked");
            if run.live.remove(seq, seq) == 0 {
                continue;
            }
            let transient = run.transient.remove(seq, seq) > 0;
            let switched = run.state == RunState::Switched;
            // Of a transient message nothing is appended: without anything else the open batch never comes.
            if !transient {
                run.dead_batch = self.open.number;
            }
            let home = if home.as_run().is_some() { run.old_home(seq) } else { home };
            if let (false, Some(epoch)) = (switched, home.as_segment()) {
                self.release(epoch, self.open.number);
            }
            if !transient {
                self.acknowledge(queue, seq);
            }
            return true;
        }
        false
    }

    pub(crate) fn settle_in_run(&mut self, id: RunId, queue: QueueId, seq: Seq) {
        let Some(run) = self.runs.get_mut(&id) else { return };
        if run.live.remove(seq, seq) == 0 {
            return;
        }
        let transient = run.transient.remove(seq, seq) > 0;
        let logged = run.durable && !transient;
        if logged {
            run.dead_batch = self.open.number;
        }
        let empty = run.live.is_empty() && run.state == RunState::Cold;
        if logged {
            self.acknowledge(queue, seq);
        }
        if empty {
            self.retire_run(id);
        }
    }

    pub(crate) fn settle_run_from(&mut self, id: RunId, from: Seq) {
        let Some(run) = self.runs.get(&id) else { return };
        if run.live.first().is_none_or(|first| first >= from) {
            return self.settle_run(id);
        }
        let queue = run.queue;
        self.make_room_for_all_of(id);
        let mut next = from;
        while let Some(seq) = self.runs.get(&id).and_then(|run| run.live.next_from(next)) {
            self.settle(queue, seq, Home::run(id));
            next = seq + 1;
        }
    }

    pub(crate) fn forget_queue(&mut self, queue: QueueId) {
        let its_runs = (queue, RunId(0))..=(queue, RunId(u32::MAX));
        let left: Vec<RunId> = self.runs_of.range(its_runs).map(|(_, run)| *run).collect();
        for run in left {
            self.settle_run(run);
        }
        if self.queues.contains_key(&queue) && self.failed.is_none() {
            self.make_room(RECORD_HEAD + 8);
            self.queues.remove(&queue);
            self.open.writer().forget(queue);
            self.open.urgent = true;
        }
    }

    pub(crate) fn settle_run(&mut self, id: RunId) {
        self.make_room_for_all_of(id);
        let Some(run) = self.runs.get_mut(&id) else { return };
        self.settled += run.live.len();
        if run.durable && run.state != RunState::Writing && self.failed.is_none() {
            self.open.writer().run_drop(id);
            run.dead_batch = self.open.number;
        }
        self.drop_live(id);
    }

    /// What takes a run, or much of it, out of the log is in one batch.
    fn make_room_for_all_of(&mut self, id: RunId) {
        let Some(run) = self.runs.get(&id) else { return };
        let ranges = match run.state {
            // The log's own copies are acknowledged, and what is transient has none.
            RunState::Writing | RunState::Spilling => run.persistent().iter().count(),
            RunState::Switched | RunState::Cold => run.live.iter().count(),
        };
        self.make_room(RECORD_HEAD + 4 + ACK_BYTES + 16 * ranges);
    }

    /// Everything in the run is gone. While it is moving, the log's copies are acknowledged one by one.
    fn drop_live(&mut self, id: RunId) {
        let run = self.runs.get_mut(&id).expect("the caller found it");
        let live = std::mem::take(&mut run.live);
        run.transient = Default::default();
        let (queue, state) = (run.queue, run.state);
        match state {
            RunState::Cold => self.retire_run(id),
            RunState::Switched => {}
            RunState::Writing | RunState::Spilling => {
                for (seq, home) in std::mem::take(&mut run.homes) {
                    if let (true, Some(epoch)) = (live.contains(seq), home.as_segment()) {
                        self.release(epoch, self.open.number);
                        self.acknowledge(queue, seq);
                    }
                }
            }
        }
    }

    /// An empty run: its file may go once what emptied it is durable.
    pub(crate) fn retire_run(&mut self, id: RunId) {
        if let Some(run) = self.runs.remove(&id) {
            self.runs_of.remove(&(run.queue, id));
            debug_assert_eq!(self.runs.len(), self.runs_of.len());
            self.background.dead_runs.push_back((run.dead_batch, id));
        }
    }
}
