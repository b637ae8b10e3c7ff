//! Run files: what a queue spilled, immutable, read in order.
//!
//! ```text
//!   run-0000000007.run
//!   ┌────────────────────────────── header, 64 bytes ─────────────────────────────┐
//!   │ magic "FBAYRUN1" │ version u32 │ run u32 │ queue u64 │ zeros … │ crc32c u32 │
//!   ├────────────────────────────── records ──────────────────────────────────────┤
//!   │ crc32c u32 │ len u32 │ seq u64 │ flags u8: 1 = persistent │ zeros 3 │ payload │  × count
//!   ├────────────────────────────── footer, 64 bytes ─────────────────────────────┤
//!   │ magic "FBAYRUNE" │ count u64 │ first u64 │ last u64 │ payload bytes u64 │    │
//!   │ records end u64 │ zeros … │ crc32c u32                                      │
//!   └─────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! All checksums are bound to (run number, offset), see `checksum.rs`. Sequence numbers increase within a file.
//! Which messages are still alive is not in the file: the log knows (SPILL, ACK and checkpoint records).

use crate::checksum::{checksum, mask, u32_at, u64_at};
use crate::disk::Disk;
use crate::home::{BatchNo, Home, QueueId, RunId, Seq};
use crate::range_set::RangeSet;
use crate::request::{Output, WorkError};

/// Payload after which a block ends, in bytes; a block holds one message more than fits, at most.
pub(crate) const BLOCK_BYTES: u64 = 1 << 20;

const HEADER_BYTES: usize = 64;
const FOOTER_BYTES: usize = 64;
const RECORD_HEAD_BYTES: usize = 20;
const HEADER_MAGIC: [u8; 8] = *b"FBAYRUN1";
const FOOTER_MAGIC: [u8; 8] = *b"FBAYRUNE";
const VERSION: u32 = 1;
const PERSISTENT: u8 = 1;
/// Where the checksum of a header or footer stands.
const BLOCK_CRC_AT: usize = 60;

/// Name of a run's file.
pub(crate) fn run_file(run: RunId) -> String {
    format!("run-{:010}.run", run.0)
}

/// The run a file name belongs to.
pub(crate) fn parse_run_file(name: &str) -> Option<RunId> {
    let number = name.strip_prefix("run-")?.strip_suffix(".run")?;
    if number.len() == 10 { number.parse().ok().map(RunId) } else { None }
}

/// Name of a run's file that a salvage has set aside.
pub(crate) fn lost_run_file(run: RunId) -> String {
    format!("lost-{}", run_file(run))
}

/// The run whose file was set aside under this name.
pub(crate) fn parse_lost_run_file(name: &str) -> Option<RunId> {
    parse_run_file(name.strip_prefix("lost-")?)
}

/// Collects the messages of one run, in order of their sequence numbers.
///
/// Bound: as large as its owner lets it grow; 1 to 16 MiB make good runs.
#[derive(Debug, Default)]
pub struct RunBuilder {
    /// The file, its checksums not yet bound to the run's number.
    bytes: Vec<u8>,
    /// Where each record begins.
    offsets: Vec<u64>,
    /// Old homes, in order; gaps of [`Home::NONE`] are the transient messages.
    homes: Vec<(Seq, Home)>,
    payload_bytes: u64,
}

impl RunBuilder {
    /// An empty run.
    pub fn new() -> RunBuilder {
        RunBuilder::default()
    }

    /// An empty run with room for so many bytes of file: growing, it would be copied, and in memory twice.
    pub fn with_capacity(bytes: usize) -> RunBuilder {
        RunBuilder { bytes: Vec::with_capacity(bytes), ..RunBuilder::default() }
    }

    /// Adds a message. `home` is where its durable copy lives now; [`Home::NONE`] = it is transient.
    ///
    /// # Panics
    /// When `seq` is not greater than the one before, or the payload is not below 4 GiB.
    pub fn push(&mut self, seq: Seq, home: Home, payload: &[u8]) {
        assert!(self.homes.last().is_none_or(|last| last.0 < seq), "sequence numbers increase");
        let len = u32::try_from(payload.len()).expect("payloads are below 4 GiB");
        if self.bytes.is_empty() {
            self.bytes.resize(HEADER_BYTES, 0);
        }
        let at = self.bytes.len();
        self.offsets.push(at as u64);
        self.homes.push((seq, home));
        self.payload_bytes += u64::from(len);
        self.bytes.reserve(RECORD_HEAD_BYTES + payload.len());
        self.bytes.extend_from_slice(&[0; 4]);
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(&seq.to_le_bytes());
        self.bytes.extend_from_slice(&[if home.is_none() { 0 } else { PERSISTENT }, 0, 0, 0]);
        self.bytes.extend_from_slice(payload);
        let crc = crc_fast::crc32_iscsi(&self.bytes[at + 4..]);
        self.bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Payload collected so far, in bytes.
    pub fn bytes(&self) -> u64 {
        self.payload_bytes
    }

    /// Messages collected so far.
    pub fn len(&self) -> usize {
        self.homes.len()
    }

    /// Whether nothing was collected.
    pub fn is_empty(&self) -> bool {
        self.homes.is_empty()
    }

    /// The finished file.
    pub(crate) fn finish(mut self, run: RunId, queue: QueueId) -> FinishedRun {
        if self.bytes.is_empty() {
            self.bytes.resize(HEADER_BYTES, 0);
        }
        let bytes = &mut self.bytes;
        bytes[..8].copy_from_slice(&HEADER_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&run.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&queue.to_le_bytes());
        let crc = checksum(run.0.into(), 0, &bytes[..BLOCK_CRC_AT]);
        bytes[BLOCK_CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        for &offset in &self.offsets {
            let at = offset as usize;
            let crc = u32_at(bytes, at) ^ mask(run.0.into(), offset);
            bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        let records_end = bytes.len() as u64;
        let first = self.homes.first().map_or(0, |entry| entry.0);
        let last = self.homes.last().map_or(0, |entry| entry.0);
        let footer = Footer {
            count: self.homes.len() as u64,
            first,
            last,
            payload_bytes: self.payload_bytes,
            records_end,
        };
        bytes.extend_from_slice(&footer.encode(run));
        let mut live = RangeSet::default();
        let mut transient = RangeSet::default();
        for &(seq, home) in &self.homes {
            live.insert(seq, seq);
            if home.is_none() {
                transient.insert(seq, seq);
            }
        }
        FinishedRun { bytes: self.bytes, footer, live, transient, homes: self.homes }
    }
}

/// A run ready to be written.
pub(crate) struct FinishedRun {
    pub(crate) bytes: Vec<u8>,
    pub(crate) footer: Footer,
    pub(crate) live: RangeSet,
    pub(crate) transient: RangeSet,
    pub(crate) homes: Vec<(Seq, Home)>,
}

/// A run as the running store sees it.
#[derive(Debug)]
pub(crate) struct TrackedRun {
    pub(crate) queue: QueueId,
    /// Belongs to a durable queue: synced, and known to the log.
    pub(crate) durable: bool,
    pub(crate) state: RunState,
    pub(crate) footer: Footer,
    /// What is alive in it.
    pub(crate) live: RangeSet,
    /// What of that is transient: readable until the next start, unknown to the log.
    pub(crate) transient: RangeSet,
    /// Old homes of its messages, until they move.
    pub(crate) homes: Vec<(Seq, Home)>,
    /// The batch with the newest record that took something out of it.
    pub(crate) dead_batch: BatchNo,
    /// A sequence number and the offset of the first record at or above it: blocks are mostly read in
    /// order, so this is all the index there is.
    pub(crate) cursor: (Seq, u64),
}

impl TrackedRun {
    /// What of the run the log vouches for.
    pub(crate) fn persistent(&self) -> RangeSet {
        let mut persistent = self.live.clone();
        for (first, last) in self.transient.iter() {
            persistent.remove(first, last);
        }
        persistent
    }

    /// Where a message of it lives until the run is switched to; [`Home::NONE`] for a transient one.
    pub(crate) fn old_home(&self, seq: Seq) -> Home {
        let found = self.homes.binary_search_by_key(&seq, |(seq, _)| *seq);
        found.map_or(Home::NONE, |at| self.homes[at].1)
    }
}

/// The way of a run to its file.
///
/// ```text
///   Writing ──file synced──► Spilling ──SPILL durable──► Switched ──event taken──► Cold
///      └────────(nothing the log must know of)──────────────▲
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum RunState {
    /// Its file is waiting or being written. Its messages are in their old homes.
    Writing,
    /// Its SPILL record is in a batch that is not durable yet.
    Spilling,
    /// Its messages live in it, but their owner was not told yet.
    Switched,
    /// Its messages live in it.
    Cold,
}

/// What a run's last 64 bytes say.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Footer {
    pub(crate) count: u64,
    pub(crate) first: Seq,
    pub(crate) last: Seq,
    pub(crate) payload_bytes: u64,
    pub(crate) records_end: u64,
}

impl Footer {
    fn encode(&self, run: RunId) -> [u8; FOOTER_BYTES] {
        let mut bytes = [0; FOOTER_BYTES];
        bytes[..8].copy_from_slice(&FOOTER_MAGIC);
        let fields = [self.count, self.first, self.last, self.payload_bytes, self.records_end];
        for (index, field) in fields.iter().enumerate() {
            bytes[8 + index * 8..16 + index * 8].copy_from_slice(&field.to_le_bytes());
        }
        let crc = checksum(run.0.into(), self.records_end, &bytes[..BLOCK_CRC_AT]);
        bytes[BLOCK_CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn decode(run: RunId, offset: u64, bytes: &[u8]) -> Option<Footer> {
        if bytes.len() != FOOTER_BYTES
            || bytes[..8] != FOOTER_MAGIC
            || u32_at(bytes, BLOCK_CRC_AT) != checksum(run.0.into(), offset, &bytes[..BLOCK_CRC_AT])
            || u64_at(bytes, 40) != offset
        {
            return None;
        }
        Some(Footer {
            count: u64_at(bytes, 8),
            first: u64_at(bytes, 16),
            last: u64_at(bytes, 24),
            payload_bytes: u64_at(bytes, 32),
            records_end: offset,
        })
    }
}

/// A run file whose bytes are not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunDamage {
    pub(crate) run: RunId,
    pub(crate) offset: u64,
    pub(crate) what: &'static str,
}

fn damage(run: RunId, offset: u64, what: &'static str) -> WorkError {
    WorkError::Damaged(RunDamage { run, offset, what })
}

/// Reads and verifies a run's header and footer.
pub(crate) fn read_footer(
    disk: &dyn Disk,
    run: RunId,
    queue: QueueId,
) -> Result<Footer, WorkError> {
    let name = run_file(run);
    let len = disk.len(&name)?;
    if len < (HEADER_BYTES + FOOTER_BYTES) as u64 {
        return Err(damage(run, 0, "the file is shorter than its header and footer"));
    }
    let mut block = [0; HEADER_BYTES];
    disk.read_at(&name, 0, &mut block)?;
    if block[..8] != HEADER_MAGIC
        || u32_at(&block, BLOCK_CRC_AT) != checksum(run.0.into(), 0, &block[..BLOCK_CRC_AT])
        || u32_at(&block, 12) != run.0
        || u64_at(&block, 16) != queue
    {
        return Err(damage(run, 0, "the header does not match its checksum, run and queue"));
    }
    let offset = len - FOOTER_BYTES as u64;
    let mut block = [0; FOOTER_BYTES];
    disk.read_at(&name, offset, &mut block)?;
    Footer::decode(run, offset, &block)
        .ok_or_else(|| damage(run, offset, "the footer does not match its checksum"))
}

/// Offset of the first record of any run.
pub(crate) const FIRST_RECORD: u64 = HEADER_BYTES as u64;

/// Reads and verifies records from `from_offset` until about [`BLOCK_BYTES`] of payload with
/// `seq >= from_seq` are collected, or until `records_end`.
pub(crate) fn read_block(
    disk: &dyn Disk,
    run: RunId,
    from_offset: u64,
    records_end: u64,
    from_seq: Seq,
) -> Result<Output, WorkError> {
    let mut messages = Vec::new();
    let next_offset = read_records(disk, run, from_offset, records_end, from_seq, &mut messages)?;
    Ok(Output::Block { messages, next_offset })
}

/// As [`read_block`], into `messages`, which on an error hold what was sound before it; returns the
/// offset after the last record read.
pub(crate) fn read_records(
    disk: &dyn Disk,
    run: RunId,
    from_offset: u64,
    records_end: u64,
    from_seq: Seq,
    messages: &mut Vec<(Seq, bool, Vec<u8>)>,
) -> Result<u64, WorkError> {
    let name = run_file(run);
    let mut collected = 0;
    let mut offset = from_offset;
    let mut buffer: Vec<u8> = Vec::new();
    // `buffer` holds the file from `offset - at` on; it is refilled when the record at `at` is not whole.
    let mut at = 0;
    while offset < records_end && collected < BLOCK_BYTES {
        let mut need = RECORD_HEAD_BYTES;
        if buffer.len() - at >= need {
            need += u32_at(&buffer, at + 4) as usize;
        }
        if offset + need as u64 > records_end {
            return Err(damage(run, offset, "a record reaches beyond the end of the records"));
        }
        if buffer.len() - at < need {
            let want = need.max((BLOCK_BYTES as usize + 4096).min((records_end - offset) as usize));
            buffer.resize(want, 0);
            at = 0;
            if disk.read_at(&name, offset, &mut buffer)? < want {
                return Err(damage(run, offset, "the file is shorter than it was"));
            }
            continue;
        }
        let record = &buffer[at..at + need];
        if u32_at(record, 0) != checksum(run.0.into(), offset, &record[4..]) {
            return Err(damage(run, offset, "a record does not match its checksum"));
        }
        let seq = u64_at(record, 8);
        if seq >= from_seq {
            let payload = &record[RECORD_HEAD_BYTES..];
            collected += payload.len() as u64 + RECORD_HEAD_BYTES as u64;
            messages.push((seq, record[16] & PERSISTENT != 0, payload.to_vec()));
        }
        at += need;
        offset += need as u64;
    }
    Ok(offset)
}
