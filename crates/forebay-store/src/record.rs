//! Records: what a batch is made of.
//!
//! ```text
//!   ┌────────────┬─────────┬─────────┬──────────┬───────┬──────────────┐
//!   │ crc32c u32 │ len u32 │ kind u8 │ flags u8 │ n u16 │ body, len    │   no padding between records
//!   └────────────┴─────────┴─────────┴──────────┴───────┴──────────────┘
//!   kind             body (integers little-endian; n only where named)
//!    1 PUBLISH       n × { queue u64, seq u64 }, payload        flags 1 = copied forward
//!    2 ACK           queue u64, ranges { first u64, last u64 }…
//!    3 META_PUT      key length u32, key, value
//!    4 META_DELETE   key
//!    5 SPILL         run u32, 0 u32, queue u64, count u64, first u64, last u64, payload bytes u64,
//!                    records end u64, live ranges { first u64, last u64 }…
//!    6 RUN_DROP      run u32
//!    7 FORGET        queue u64
//!    8 DELIVERED     queue u64, upto u64
//!    9 STOP          (nothing)                                  last record of a clean stop
//!   16 CHECKPOINT_BEGIN  (nothing)
//!   17 CHECKPOINT_META   as META_PUT
//!   18 CHECKPOINT_QUEUE  queue u64, next seq u64, delivered upto u64
//!   19 CHECKPOINT_RUN    as SPILL
//!   20 CHECKPOINT_END    records between begin and end u64
//! ```
//!
//! The checksum covers everything after itself and is bound to (segment epoch and salt, offset of the record).

use crate::checksum::{checksum, u32_at, u64_at};
use crate::home::{QueueId, RunId, Seq};
use crate::range_set::RangeSet;
use crate::run::Footer;

/// Bytes before a record's body.
pub(crate) const RECORD_HEAD: usize = 12;

/// What one acknowledgement takes at most: a record of its own, with one range.
pub const ACK_BYTES: usize = RECORD_HEAD + 8 + 16;

/// A SPILL record, without its ranges.
pub(crate) const SPILL_BYTES: usize = RECORD_HEAD + 56;

/// PUBLISH record whose message was in the log before.
pub(crate) const FLAG_RELOCATED: u8 = 1;

/// Most queues in one PUBLISH record; more get further records.
pub(crate) const QUEUES_MAX: usize = u16::MAX as usize;

/// Kind byte of a record.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Publish = 1,
    Ack = 2,
    MetaPut = 3,
    MetaDelete = 4,
    Spill = 5,
    RunDrop = 6,
    Forget = 7,
    Delivered = 8,
    Stop = 9,
    CheckpointBegin = 16,
    CheckpointMeta = 17,
    CheckpointQueue = 18,
    CheckpointRun = 19,
    CheckpointEnd = 20,
}

/// A record as read back, borrowing from the segment's bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    Publish { queues: QueueList<'a>, payload: &'a [u8] },
    Ack { queue: QueueId, ranges: RangeList<'a> },
    MetaPut { key: &'a [u8], value: &'a [u8] },
    MetaDelete { key: &'a [u8] },
    Spill(SpillRecord<'a>),
    RunDrop { run: RunId },
    Forget { queue: QueueId },
    Delivered { queue: QueueId, upto: Seq },
    Stop,
    CheckpointBegin,
    CheckpointMeta { key: &'a [u8], value: &'a [u8] },
    CheckpointQueue { queue: QueueId, next_seq: Seq, delivered_upto: Seq },
    CheckpointRun(SpillRecord<'a>),
    CheckpointEnd { records: u64 },
}

impl Record<'_> {
    /// What it takes at most to say once more what neither a checkpoint nor a run says, in bytes.
    pub(crate) fn bytes_to_say_again(&self) -> u64 {
        let bytes = match self {
            Record::Publish { queues, payload } => RECORD_HEAD + queues.0.len() + payload.len(),
            Record::Ack { ranges, .. } => RECORD_HEAD + 8 + ranges.0.len(),
            Record::Spill(spill) => RECORD_HEAD + 8 + spill.live.0.len(),
            Record::Forget { .. } => ACK_BYTES,
            _ => 0,
        };
        bytes as u64
    }
}

/// `n × {queue, seq}` of a PUBLISH record.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct QueueList<'a>(&'a [u8]);

impl<'a> QueueList<'a> {
    pub(crate) fn iter(self) -> impl Iterator<Item = (QueueId, Seq)> + 'a {
        self.0.chunks_exact(16).map(|pair| (u64_at(pair, 0), u64_at(pair, 8)))
    }
}

/// `{first, last}…`; every `first <= last`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeList<'a>(&'a [u8]);

impl<'a> RangeList<'a> {
    fn parse(bytes: &'a [u8]) -> Option<RangeList<'a>> {
        let sound = bytes.len().is_multiple_of(16)
            && RangeList(bytes).iter().all(|(first, last)| first <= last && last < u64::MAX);
        sound.then_some(RangeList(bytes))
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = (Seq, Seq)> + 'a {
        self.0.chunks_exact(16).map(|pair| (u64_at(pair, 0), u64_at(pair, 8)))
    }
}

/// Body of SPILL and CHECKPOINT_RUN.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpillRecord<'a> {
    pub(crate) run: RunId,
    pub(crate) queue: QueueId,
    pub(crate) footer: Footer,
    pub(crate) live: RangeList<'a>,
}

/// Appends one record; `offset_base` is the offset in the segment of `out[0]`.
#[inline]
fn append(
    out: &mut Vec<u8>,
    owner: u64,
    offset_base: u64,
    (kind, flags, n): (Kind, u8, u16),
    body: impl FnOnce(&mut Vec<u8>),
) {
    let at = out.len();
    let n = n.to_le_bytes();
    out.extend_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0, kind as u8, flags, n[0], n[1]]);
    body(out);
    let len = u32::try_from(out.len() - at - RECORD_HEAD).expect("a record is below 4 GiB");
    out[at + 4..at + 8].copy_from_slice(&len.to_le_bytes());
    let crc = checksum(owner, offset_base + at as u64, &out[at + 4..]);
    out[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

/// Where records go: a buffer, and what its checksums are bound to.
pub(crate) struct RecordWriter<'a> {
    pub(crate) out: &'a mut Vec<u8>,
    pub(crate) owner: u64,
    /// Offset in the segment of `out[0]`.
    pub(crate) offset_base: u64,
    /// Records written so far.
    pub(crate) count: &'a mut u32,
}

impl RecordWriter<'_> {
    #[inline]
    fn append(&mut self, head: (Kind, u8, u16), body: impl FnOnce(&mut Vec<u8>)) {
        append(self.out, self.owner, self.offset_base, head, body);
        *self.count += 1;
    }

    /// `queues`: 1 to [`QUEUES_MAX`].
    #[inline]
    pub(crate) fn publish(&mut self, flags: u8, queues: &[(QueueId, Seq)], payload: &[u8]) {
        let n = u16::try_from(queues.len()).expect("the caller splits longer lists");
        self.out.reserve(RECORD_HEAD + queues.len() * 16 + payload.len());
        self.append((Kind::Publish, flags, n), |out| {
            for &(queue, seq) in queues {
                out.extend_from_slice(&queue.to_le_bytes());
                out.extend_from_slice(&seq.to_le_bytes());
            }
            out.extend_from_slice(payload);
        });
    }

    pub(crate) fn ack(&mut self, queue: QueueId, ranges: &[(Seq, Seq)]) {
        self.append((Kind::Ack, 0, 0), |out| {
            out.extend_from_slice(&queue.to_le_bytes());
            put_ranges(out, ranges.iter().copied());
        });
    }

    pub(crate) fn meta_put(&mut self, key: &[u8], value: &[u8]) {
        self.append((Kind::MetaPut, 0, 0), |out| put_pair(out, key, value));
    }

    pub(crate) fn meta_delete(&mut self, key: &[u8]) {
        self.append((Kind::MetaDelete, 0, 0), |out| out.extend_from_slice(key));
    }

    pub(crate) fn spill(&mut self, run: RunId, queue: QueueId, footer: &Footer, live: &RangeSet) {
        self.append((Kind::Spill, 0, 0), |out| put_spill(out, run, queue, footer, live));
    }

    pub(crate) fn run_drop(&mut self, run: RunId) {
        self.append((Kind::RunDrop, 0, 0), |out| out.extend_from_slice(&run.0.to_le_bytes()));
    }

    pub(crate) fn forget(&mut self, queue: QueueId) {
        self.append((Kind::Forget, 0, 0), |out| out.extend_from_slice(&queue.to_le_bytes()));
    }

    pub(crate) fn delivered(&mut self, queue: QueueId, upto: Seq) {
        self.append((Kind::Delivered, 0, 0), |out| put_u64s(out, &[queue, upto]));
    }

    pub(crate) fn stop(&mut self) {
        self.append((Kind::Stop, 0, 0), |_| {});
    }

    pub(crate) fn checkpoint_begin(&mut self) {
        self.append((Kind::CheckpointBegin, 0, 0), |_| {});
    }

    pub(crate) fn checkpoint_meta(&mut self, key: &[u8], value: &[u8]) {
        self.append((Kind::CheckpointMeta, 0, 0), |out| put_pair(out, key, value));
    }

    pub(crate) fn checkpoint_queue(&mut self, queue: QueueId, next_seq: Seq, delivered: Seq) {
        self.append((Kind::CheckpointQueue, 0, 0), |out| {
            put_u64s(out, &[queue, next_seq, delivered]);
        });
    }

    pub(crate) fn checkpoint_run(
        &mut self,
        run: RunId,
        queue: QueueId,
        footer: &Footer,
        live: &RangeSet,
    ) {
        self.append((Kind::CheckpointRun, 0, 0), |out| put_spill(out, run, queue, footer, live));
    }

    pub(crate) fn checkpoint_end(&mut self, records: u64) {
        self.append((Kind::CheckpointEnd, 0, 0), |out| put_u64s(out, &[records]));
    }
}

fn put_u64s(out: &mut Vec<u8>, values: &[u64]) {
    for value in values {
        out.extend_from_slice(&value.to_le_bytes());
    }
}

fn put_ranges(out: &mut Vec<u8>, ranges: impl Iterator<Item = (Seq, Seq)>) {
    for (first, last) in ranges {
        put_u64s(out, &[first, last]);
    }
}

fn put_pair(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let len = u32::try_from(key.len()).expect("a key is below 4 GiB");
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(value);
}

fn put_spill(out: &mut Vec<u8>, run: RunId, queue: QueueId, footer: &Footer, live: &RangeSet) {
    out.extend_from_slice(&run.0.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    let Footer { count, first, last, payload_bytes, records_end } = *footer;
    put_u64s(out, &[queue, count, first, last, payload_bytes, records_end]);
    put_ranges(out, live.iter());
}

/// Reads the record that `bytes` begin with, which lies at `offset` of its segment; with its length.
pub(crate) fn read(
    bytes: &[u8],
    owner: u64,
    offset: u64,
) -> Result<(Record<'_>, usize), &'static str> {
    let bytes = cut(bytes)?;
    if u32_at(bytes, 0) != checksum(owner, offset, &bytes[4..]) {
        return Err("a record does not match its checksum");
    }
    read_verified(bytes)
}

/// As [`read`], for bytes that were verified before.
pub(crate) fn read_verified(bytes: &[u8]) -> Result<(Record<'_>, usize), &'static str> {
    let bytes = cut(bytes)?;
    let n = usize::from(u16::from_le_bytes([bytes[10], bytes[11]]));
    let record = parse(bytes[8], n, &bytes[RECORD_HEAD..])
        .ok_or("a record has an unknown kind or a malformed body")?;
    Ok((record, bytes.len()))
}

/// How long the record that `bytes` begin with says it is; nothing was verified.
pub(crate) fn claimed_bytes(bytes: &[u8]) -> usize {
    if bytes.len() < RECORD_HEAD { RECORD_HEAD } else { RECORD_HEAD + u32_at(bytes, 4) as usize }
}

/// The record that `bytes` begin with, as far as its length can be believed.
fn cut(bytes: &[u8]) -> Result<&[u8], &'static str> {
    if bytes.len() < RECORD_HEAD {
        return Err("a record is cut off");
    }
    bytes.get(..claimed_bytes(bytes)).ok_or("a record reaches beyond its batch")
}

fn parse(kind: u8, n: usize, body: &[u8]) -> Option<Record<'_>> {
    const PUBLISH: u8 = Kind::Publish as u8;
    const ACK: u8 = Kind::Ack as u8;
    const META_PUT: u8 = Kind::MetaPut as u8;
    const META_DELETE: u8 = Kind::MetaDelete as u8;
    const SPILL: u8 = Kind::Spill as u8;
    const RUN_DROP: u8 = Kind::RunDrop as u8;
    const FORGET: u8 = Kind::Forget as u8;
    const DELIVERED: u8 = Kind::Delivered as u8;
    const STOP: u8 = Kind::Stop as u8;
    const CHECKPOINT_BEGIN: u8 = Kind::CheckpointBegin as u8;
    const CHECKPOINT_META: u8 = Kind::CheckpointMeta as u8;
    const CHECKPOINT_QUEUE: u8 = Kind::CheckpointQueue as u8;
    const CHECKPOINT_RUN: u8 = Kind::CheckpointRun as u8;
    const CHECKPOINT_END: u8 = Kind::CheckpointEnd as u8;
    let exactly = |len: usize| (body.len() == len).then_some(());
    Some(match kind {
        PUBLISH => {
            let (queues, payload) = body.split_at_checked(n * 16)?;
            let queues = QueueList(queues);
            if queues.iter().any(|(_, seq)| seq == u64::MAX) {
                return None;
            }
            Record::Publish { queues, payload }
        }
        ACK => {
            let (queue, ranges) = body.split_at_checked(8)?;
            Record::Ack { queue: u64_at(queue, 0), ranges: RangeList::parse(ranges)? }
        }
        META_PUT | CHECKPOINT_META => {
            let (len, rest) = body.split_at_checked(4)?;
            let (key, value) = rest.split_at_checked(u32_at(len, 0) as usize)?;
            if kind == META_PUT {
                Record::MetaPut { key, value }
            } else {
                Record::CheckpointMeta { key, value }
            }
        }
        META_DELETE => Record::MetaDelete { key: body },
        SPILL | CHECKPOINT_RUN => {
            let (head, live) = body.split_at_checked(56)?;
            let spill = SpillRecord {
                run: RunId(u32_at(head, 0)),
                queue: u64_at(head, 8),
                footer: Footer {
                    count: u64_at(head, 16),
                    first: u64_at(head, 24),
                    last: u64_at(head, 32),
                    payload_bytes: u64_at(head, 40),
                    records_end: u64_at(head, 48),
                },
                live: RangeList::parse(live)?,
            };
            if kind == SPILL { Record::Spill(spill) } else { Record::CheckpointRun(spill) }
        }
        RUN_DROP => {
            exactly(4)?;
            Record::RunDrop { run: RunId(u32_at(body, 0)) }
        }
        FORGET => {
            exactly(8)?;
            Record::Forget { queue: u64_at(body, 0) }
        }
        DELIVERED => {
            exactly(16)?;
            Record::Delivered { queue: u64_at(body, 0), upto: u64_at(body, 8) }
        }
        STOP => {
            exactly(0)?;
            Record::Stop
        }
        CHECKPOINT_BEGIN => {
            exactly(0)?;
            Record::CheckpointBegin
        }
        CHECKPOINT_QUEUE => {
            exactly(24)?;
            Record::CheckpointQueue {
                queue: u64_at(body, 0),
                next_seq: u64_at(body, 8),
                delivered_upto: u64_at(body, 16),
            }
        }
        CHECKPOINT_END => {
            exactly(8)?;
            Record::CheckpointEnd { records: u64_at(body, 0) }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut RecordWriter<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        let mut count = 0;
        write(&mut RecordWriter { out: &mut out, owner: 3, offset_base: 0, count: &mut count });
        assert_eq!(count, 1);
        out
    }

    #[test]
    fn records_read_back() {
        let bytes = written(|w| w.publish(0, &[(1, 2), (3, 4)], b"payload"));
        let (record, end) = read(&bytes, 3, 0).unwrap();
        assert_eq!(end, bytes.len());
        let Record::Publish { queues, payload } = record else { panic!("{record:?}") };
        assert_eq!(queues.iter().collect::<Vec<_>>(), [(1, 2), (3, 4)]);
        assert_eq!(payload, b"payload");

        let bytes = written(|w| w.ack(9, &[(1, 5), (7, 7)]));
        let (record, _) = read(&bytes, 3, 0).unwrap();
        let Record::Ack { queue: 9, ranges } = record else { panic!("{record:?}") };
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [(1, 5), (7, 7)]);

        let bytes = written(|w| w.meta_put(b"key", b"value"));
        let (record, _) = read(&bytes, 3, 0).unwrap();
        assert_eq!(record, Record::MetaPut { key: b"key", value: b"value" });

        let mut live = RangeSet::default();
        live.insert(4, 9);
        let footer = Footer { count: 6, first: 4, last: 9, payload_bytes: 60, records_end: 200 };
        let bytes = written(|w| w.spill(RunId(5), 8, &footer, &live));
        let (record, _) = read(&bytes, 3, 0).unwrap();
        let Record::Spill(spill) = record else { panic!("{record:?}") };
        assert_eq!((spill.run, spill.queue, spill.footer), (RunId(5), 8, footer));
        assert_eq!(spill.live.iter().collect::<Vec<_>>(), [(4, 9)]);
    }

    #[test]
    fn any_flipped_bit_of_a_record_is_noticed() {
        let mut bytes = written(|w| w.publish(0, &[(1, 2)], b"some payload"));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&bytes, 3, 0).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        assert!(read(&bytes, 4, 0).is_err(), "another epoch");
        assert!(read(&bytes, 3, 16).is_err(), "another offset");
    }

    #[test]
    fn a_cut_record_is_noticed() {
        let bytes = written(|w| w.meta_put(b"key", b"value"));
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end], 3, 0).is_err());
        }
    }
}
