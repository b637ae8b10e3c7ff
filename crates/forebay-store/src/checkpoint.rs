//! Checkpoints: what a segment begins with, so that the segments before it are not needed to read it.
//!
//! ```text
//!   segment ─► │ header │ BEGIN  META…  QUEUE…  RUN…  END │ records … │
//!                         └── one batch, or several: each but the last closed at batch_max_bytes ──┘
//! ```
//!
//! A checkpoint is the state as of the end of the segment before: the meta map, each queue's next
//! sequence number, each spilled run with what is alive in it. Messages are not in it: those alive in the
//! log are found where they are. It is valid with its END only, and END shares its batch with the first
//! records after it, so a small checkpoint costs no flush of its own.

use crate::batch::{AckTable, OpenBatch};
use crate::home::BatchNo;
use crate::log::Log;
use crate::request::Begin;
use crate::run::RunState;
use crate::segment::{Segment, SegmentHeader};

impl Log {
    /// Begins a segment with its header and checkpoint; the open batch goes on behind it. `carries_from` is for its header.
    pub(crate) fn begin_segment(&mut self, number: BatchNo, carries_from: BatchNo) {
        let epoch = self.next_epoch;
        self.next_epoch += 1;
        let spare = self.background.take_spare(self.options.segment_bytes);
        let mut bytes = self.take_buffer();
        let (salvaged_before, salt) = (self.salvaged_before, self.salt);
        SegmentHeader { epoch, first_batch: number, salvaged_before, salt, carries_from }
            .encode(&mut bytes);
        self.open = OpenBatch::new(number, epoch, salt, 0, bytes);
        self.open.begin = Some(Begin { spare: spare.map(|spare| spare.number), sync_first: None });

        self.write_checkpoint();
        if carries_from > 0 {
            self.carrying = Some((self.open.number, carries_from - 1));
        }

        let used = self.open.offset + self.open.bytes.len() as u64;
        self.open.urgent = true;
        self.segments.push_back(Segment {
            epoch,
            live: 0,
            messages: 0,
            message_bytes: 0,
            dead_batch: 0,
            passed_by: None,
            checkpoint_batch: self.open.number,
            used,
            capacity: self.options.segment_bytes.max(2 * used),
            allocated: if spare.is_some() { self.options.segment_bytes } else { used },
            prewritten: spare
                .is_some_and(|spare| spare.written_bytes >= self.options.segment_bytes),
        });
    }

    fn write_checkpoint(&mut self) {
        let mut records = 0;
        self.open.writer().checkpoint_begin();
        // Sorted, so that the same history gives the same bytes.
        let meta = std::mem::take(&mut self.meta);
        for (key, value) in &meta {
            self.open.writer().checkpoint_meta(key, value);
            records += 1;
            self.cut_if_large();
        }
        self.meta = meta;
        let mut queues: Vec<_> = self.queues.iter().map(|(&id, &state)| (id, state)).collect();
        queues.sort_unstable_by_key(|queue| queue.0);
        for (queue, state) in queues {
            self.open.writer().checkpoint_queue(queue, state.next_seq, state.delivered_upto);
            records += 1;
            self.cut_if_large();
        }
        let mut runs: Vec<_> = self
            .runs
            .iter()
            .filter(|(_, run)| run.durable && run.state != RunState::Writing)
            .map(|(&id, _)| id)
            .collect();
        runs.sort_unstable();
        for id in runs {
            let run = &self.runs[&id];
            let persistent = run.persistent();
            if !persistent.is_empty() {
                self.open.writer().checkpoint_run(id, run.queue, &run.footer, &persistent);
                records += 1;
                self.cut_if_large();
            }
        }
        self.open.writer().checkpoint_end(records);
    }

    /// Closes a part of a large checkpoint and goes on in the next batch.
    fn cut_if_large(&mut self) {
        if self.open.bytes.len() < self.options.batch_max_bytes {
            return;
        }
        let end = self.open.close(&mut AckTable::default());
        let OpenBatch { number, epoch, salt, .. } = self.open;
        let next = OpenBatch::new(number + 1, epoch, salt, end, Vec::new());
        let part = std::mem::replace(&mut self.open, next);
        self.queued.push_back(part);
    }
}
