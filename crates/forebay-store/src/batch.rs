//! Batches: what is written and synced as one.
//!
//! ```text
//!   ┌───────────────────────────── head, 64 bytes ──────────────────────────────┐
//!   │ magic u32 "FBAT" │ crc32c u32 │ epoch u64 │ number u64 │ durable upto u64 │
//!   │ records bytes u32 │ record count u32 │ salt u64 │ log begins u64 │ zeros │
//!   ├───────────────────────────────────────────────────────────────────────────┤
//!   │ records …                                                                 │
//!   ├───────────────────────────────────────────────────────────────────────────┤
//!   │ zeros up to the next multiple of 4096 bytes                               │
//!   └───────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! Padding means that no write ever touches a sector that already holds durable data. `durable upto` is
//! the newest batch that was synced when this one was begun to be written: recovery learns from it which
//! missing batches are damage and which are merely a torn tail. The head's checksum covers bytes 8 to
//! 64 and is bound to (epoch, salt, offset); records carry their own. A batch is valid when its head is, and
//! its records, each valid, fill `records bytes` exactly and are `record count` many. The salt is that of the segment's
//! header, for the case that this cannot be read. `log begins` is the epoch of the oldest segment that is needed once the batch
//! is there; those before it go when it is synced (`truncation.rs`). 0: its writer did not say.

use hashbrown::HashMap;

use crate::checksum::{checksum, owner, u32_at, u64_at};
use crate::home::{BATCH_NO_MAX, BatchNo, QueueId, Seq};
use crate::record::{self, Record, RecordWriter};
use crate::request::Begin;
use crate::segment::BLOCK;

/// Bytes before a batch's records.
pub(crate) const BATCH_HEAD: usize = 64;

const SALT_AT: usize = 40;
const LOG_BEGINS_AT: usize = 48;
const MAGIC: u32 = u32::from_le_bytes(*b"FBAT");

/// What a batch's head says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct BatchHead {
    pub(crate) number: BatchNo,
    pub(crate) durable_upto: BatchNo,
    pub(crate) records_bytes: u32,
    pub(crate) count: u32,
    pub(crate) salt: u64,
    pub(crate) log_begins: u64,
}

impl BatchHead {
    /// Reads the head that `bytes` begin with, which lies at `offset` of its segment. One that says what none can say is none.
    /// Whether its salt is the directory's the caller has to see: bytes that somebody published may look like a head with another.
    pub(crate) fn decode(bytes: &[u8], epoch: u64, offset: u64) -> Option<BatchHead> {
        let head = bytes.get(..BATCH_HEAD)?;
        let salt = u64_at(head, SALT_AT);
        if u32_at(head, 0) != MAGIC
            || u32_at(head, 4) != checksum(owner(epoch, salt), offset, &head[8..])
            || u64_at(head, 8) != epoch
        {
            return None;
        }
        let (number, durable_upto) = (u64_at(head, 16), u64_at(head, 24));
        let log_begins = u64_at(head, LOG_BEGINS_AT);
        let possible = durable_upto < number && number <= BATCH_NO_MAX && log_begins <= epoch;
        possible.then(|| BatchHead {
            number,
            durable_upto,
            records_bytes: u32_at(head, 32),
            count: u32_at(head, 36),
            salt,
            log_begins,
        })
    }

    /// Whether `bytes` begin with what looks like a head of this segment, sound or not.
    pub(crate) fn was_begun(bytes: &[u8], epoch: u64) -> bool {
        bytes
            .get(..BATCH_HEAD)
            .is_some_and(|head| u32_at(head, 0) == MAGIC && u64_at(head, 8) == epoch)
    }

    /// What the checksums of its records are bound to, beside their offsets, if this is the epoch of its segment.
    pub(crate) fn owner(&self, epoch: u64) -> u64 {
        owner(epoch, self.salt)
    }

    /// Size of the batch with its padding, in bytes.
    pub(crate) fn padded_bytes(&self) -> usize {
        (BATCH_HEAD + self.records_bytes as usize).next_multiple_of(BLOCK)
    }
}

/// Verifies the batch that `bytes` begin with, which lies at `offset` of its segment and whose head is `head`; `Err`
/// says where it is wrong, and what.
pub(crate) fn verify(
    bytes: &[u8],
    epoch: u64,
    offset: u64,
    head: &BatchHead,
) -> Result<(), (u64, &'static str)> {
    let end = BATCH_HEAD + head.records_bytes as usize;
    let bytes = bytes.get(..end).ok_or((offset, "a batch reaches beyond the end of the file"))?;
    let mut at = BATCH_HEAD;
    for _ in 0..head.count {
        let place = offset + at as u64;
        at += record::read(&bytes[at..], head.owner(epoch), place).map_err(|what| (place, what))?.1;
    }
    let complete = at == end;
    complete.then_some(()).ok_or((offset + at as u64, "a batch has more bytes than records"))
}

/// What is known about a batch that is walked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// It was verified: its checksums need not be computed again.
    Verified,
    /// Records are taken up to the first that is wrong.
    Nothing,
}

/// Visits the records of the batch that `bytes` begin with, which lies at `offset` of its segment, with their offsets
/// there.
pub(crate) fn walk<'a>(
    bytes: &'a [u8],
    epoch: u64,
    offset: u64,
    head: &BatchHead,
    trust: Trust,
    mut visit: impl FnMut(u64, Record<'a>),
) {
    let end = (BATCH_HEAD + head.records_bytes as usize).min(bytes.len());
    let mut rest = bytes.get(BATCH_HEAD..end).unwrap_or_default();
    let mut place = offset + BATCH_HEAD as u64;
    for _ in 0..head.count {
        let read = match trust {
            Trust::Verified => record::read_verified(rest),
            Trust::Nothing => record::read(rest, head.owner(epoch), place),
        };
        let Ok((record, len)) = read else { return };
        visit(place, record);
        rest = &rest[len..];
        place += len as u64;
    }
}

/// Acknowledgements of the open batch, by queue, merged into ranges as they come.
///
/// They are written at the end of the batch: a batch is recovered as a whole, so within it an
/// acknowledgement may stand anywhere after its message.
#[derive(Debug, Default)]
pub(crate) struct AckTable {
    lists: Vec<AckList>,
    /// Lists in use; those behind keep their memory for the next batch.
    used: usize,
    index: HashMap<QueueId, usize, foldhash::fast::FixedState>,
    /// The list met last: acknowledgements come in streaks.
    recent: usize,
    ranges: usize,
}

#[derive(Debug, Default)]
struct AckList {
    queue: QueueId,
    ranges: Vec<(Seq, Seq)>,
}

impl AckTable {
    #[inline]
    pub(crate) fn push(&mut self, queue: QueueId, seq: Seq) {
        let recent = match self.lists.get(self.recent) {
            Some(list) if self.recent < self.used && list.queue == queue => self.recent,
            _ => self.list_of(queue),
        };
        self.recent = recent;
        let ranges = &mut self.lists[recent].ranges;
        match ranges.last_mut() {
            Some(last) if last.1 + 1 == seq => last.1 = seq,
            Some(last) if seq + 1 == last.0 => last.0 = seq,
            _ => {
                ranges.push((seq, seq));
                self.ranges += 1;
            }
        }
    }

    fn list_of(&mut self, queue: QueueId) -> usize {
        if let Some(&index) = self.index.get(&queue) {
            return index;
        }
        let index = self.used;
        if index == self.lists.len() {
            self.lists.push(AckList::default());
        }
        self.lists[index].queue = queue;
        self.lists[index].ranges.clear();
        self.index.insert(queue, index);
        self.used += 1;
        index
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// Bytes its records will take.
    pub(crate) fn record_bytes(&self) -> usize {
        self.used * (record::RECORD_HEAD + 8) + self.ranges * 16
    }

    pub(crate) fn drain_into(&mut self, writer: &mut RecordWriter<'_>) {
        for list in &self.lists[..self.used] {
            writer.ack(list.queue, &list.ranges);
        }
        // Memory that one burst needed is not kept for ever.
        self.lists.truncate(LISTS_KEPT);
        for list in &mut self.lists {
            list.ranges.shrink_to(LIST_RANGES_KEPT);
        }
        self.index.clear();
        self.index.shrink_to(LISTS_KEPT);
        self.used = 0;
        self.recent = 0;
        self.ranges = 0;
    }
}

/// Bound of what an empty [`AckTable`] keeps: lists, and ranges per list.
const LISTS_KEPT: usize = 256;
const LIST_RANGES_KEPT: usize = 64;

/// A batch being filled, or filled and waiting for its turn.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    pub(crate) number: BatchNo,
    pub(crate) epoch: u64,
    pub(crate) salt: u64,
    /// Offset in the segment of `bytes[0]`.
    pub(crate) offset: u64,
    /// The segment's header block, if the batch is its first, then the batch.
    pub(crate) bytes: Vec<u8>,
    /// Where in `bytes` the batch begins.
    pub(crate) start: usize,
    pub(crate) count: u32,
    pub(crate) publishes: u32,
    pub(crate) waiters: u32,
    /// Holds something that is not only acknowledgements: is to be committed without delay.
    pub(crate) urgent: bool,
    pub(crate) begin: Option<Begin>,
}

impl OpenBatch {
    /// Begins a batch in `bytes`, an empty buffer, or one that holds the segment's header block.
    pub(crate) fn new(
        number: BatchNo,
        epoch: u64,
        salt: u64,
        offset: u64,
        mut bytes: Vec<u8>,
    ) -> OpenBatch {
        let start = bytes.len();
        bytes.resize(start + BATCH_HEAD, 0);
        OpenBatch { number, epoch, salt, offset, bytes, start, ..OpenBatch::default() }
    }

    #[inline]
    pub(crate) fn writer(&mut self) -> RecordWriter<'_> {
        RecordWriter {
            out: &mut self.bytes,
            owner: owner(self.epoch, self.salt),
            offset_base: self.offset,
            count: &mut self.count,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Writes the acknowledgements and pads; returns the offset in the segment after the batch.
    pub(crate) fn close(&mut self, acks: &mut AckTable) -> u64 {
        acks.drain_into(&mut self.writer());
        let records = self.bytes.len() - self.start - BATCH_HEAD;
        let records = u32::try_from(records).expect("a batch is below 4 GiB");
        let start = self.start;
        self.bytes[start + 32..start + 36].copy_from_slice(&records.to_le_bytes());
        self.bytes[start + 36..start + 40].copy_from_slice(&self.count.to_le_bytes());
        let padded = self.bytes.len().next_multiple_of(BLOCK);
        self.bytes.resize(padded, 0);
        self.offset + padded as u64
    }

    /// Fills in the head of a closed batch, at the moment it goes to the disk.
    pub(crate) fn seal(&mut self, durable_upto: BatchNo, log_begins: u64) {
        let offset = self.offset + self.start as u64;
        let head = &mut self.bytes[self.start..self.start + BATCH_HEAD];
        head[..4].copy_from_slice(&MAGIC.to_le_bytes());
        head[8..16].copy_from_slice(&self.epoch.to_le_bytes());
        head[16..24].copy_from_slice(&self.number.to_le_bytes());
        head[24..32].copy_from_slice(&durable_upto.to_le_bytes());
        head[SALT_AT..SALT_AT + 8].copy_from_slice(&self.salt.to_le_bytes());
        head[LOG_BEGINS_AT..LOG_BEGINS_AT + 8].copy_from_slice(&log_begins.to_le_bytes());
        let crc = checksum(owner(self.epoch, self.salt), offset, &head[8..]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch() -> Vec<u8> {
        let mut batch = OpenBatch::new(7, 2, 77, 8192, Vec::new());
        let mut acks = AckTable::default();
        batch.writer().publish(0, &[(1, 1)], b"one");
        for seq in [5, 6, 7, 4, 9] {
            acks.push(1, seq);
        }
        acks.push(2, 1);
        acks.push(1, 10);
        assert_eq!(batch.close(&mut acks), 8192 + 4096);
        assert!(acks.is_empty());
        batch.seal(6, 1);
        batch.bytes
    }

    #[test]
    fn a_batch_reads_back_with_its_acknowledgements_merged() {
        let bytes = batch();
        let head = BatchHead::decode(&bytes, 2, 8192).unwrap();
        assert_eq!((head.number, head.durable_upto, head.count), (7, 6, 3));
        assert_eq!(head.log_begins, 1);
        assert_eq!(head.padded_bytes(), 4096);
        let mut acks = Vec::new();
        verify(&bytes, 2, 8192, &head).unwrap();
        walk(&bytes, 2, 8192, &head, Trust::Verified, |_, record| {
            if let Record::Ack { queue, ranges } = record {
                acks.push((queue, ranges.iter().collect::<Vec<_>>()));
            }
        });
        assert_eq!(acks, [(1, vec![(4, 7), (9, 10)]), (2, vec![(1, 1)])]);
    }

    #[test]
    fn any_flipped_bit_outside_the_padding_is_noticed() {
        let mut bytes = batch();
        let head = BatchHead::decode(&bytes, 2, 8192).unwrap();
        let used = BATCH_HEAD + head.records_bytes as usize;
        for bit in 0..used * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let sound = BatchHead::decode(&bytes, 2, 8192)
                .is_some_and(|head| verify(&bytes, 2, 8192, &head).is_ok());
            assert!(!sound, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_head_that_says_what_none_can_say_is_none() {
        for (number, durable_upto, log_begins, sound) in [
            (1, 0, 2, true),
            (0, 0, 2, false),
            (7, 6, 0, true),
            (7, 6, 2, true),
            (7, 6, 3, false),
            (7, 7, 2, false),
            (7, u64::MAX, 2, false),
            (BATCH_NO_MAX, 7, 2, true),
            (BATCH_NO_MAX + 1, 7, 2, false),
            (u64::MAX, u64::MAX - 1, 2, false),
        ] {
            let mut batch = OpenBatch::new(number, 2, 77, 8192, Vec::new());
            batch.close(&mut AckTable::default());
            batch.seal(durable_upto, log_begins);
            let head = BatchHead::decode(&batch.bytes, 2, 8192);
            assert_eq!(head.is_some(), sound, "{number} {durable_upto} {log_begins}");
        }
    }

    #[test]
    fn a_batch_of_another_life_or_place_is_not_valid() {
        let bytes = batch();
        assert_eq!(BatchHead::decode(&bytes, 3, 8192), None);
        assert_eq!(BatchHead::decode(&bytes, 2, 4096), None);
        let head = BatchHead::decode(&bytes, 2, 8192).unwrap();
        assert_eq!(head.salt, 77);
        let salted_otherwise = BatchHead { salt: 78, ..head };
        assert!(verify(&bytes, 2, 8192, &salted_otherwise).is_err(), "records have the salt, too");
    }
}
