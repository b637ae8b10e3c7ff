//! A segment of the log: its file, its header, and what the running store remembers of it.
//!
//! ```text
//!   log-0000000012.seg
//!   0        ┌──────────────────────── header block, 4096 bytes ─────────────────────────┐
//!            │ magic "FBAYSEG1" │ version u32 │ 0 u32 │ epoch u64 │ first batch u64 │     │
//!            │ salvaged before u64 │ salt u64 │ carries from u64 │ 0 │ crc32c u32 │ 0 … │
//!   4096     ├──────────────────────── batch: checkpoint, then records ──────────────────┤
//!            ├──────────────────────── batch ────────────────────────────────────────────┤
//!            │ …                                                                         │
//!   64 MiB   └──────────── zeros, or bytes of the file's earlier life (never valid) ─────┘
//! ```
//!
//! The epoch is the segment's number, counted from 1 and never reused: it is in the file's name and in
//! every checksum. `first batch` joins the segments: one ends where its last valid batch is the next
//! one's first minus one. `salvaged before`: segments below this epoch were found damaged and accepted
//! by an operator; later recoveries pass over their damage instead of refusing again. The salt is the same in all
//! segments of a directory, but in those before it had one, where it is 0; `checksum.rs` says what it is for.
//! `carries from`: if not 0, this segment's checkpoint and what is in one batch with its end say all that the batches
//! from this one up to `first batch` said, which may be missing ([`Tail`](crate::tail::Tail)).

use std::io;

use crate::checksum::{checksum, u32_at, u64_at};
use crate::disk::Disk;
use crate::home::{BATCH_NO_MAX, BatchNo};

/// Size of the header block; batches begin, and are padded to, multiples of it.
pub(crate) const BLOCK: usize = 4096;

/// After a salvage that met damage epochs go on so much further, that nothing in damaged files counts as of one to come.
pub(crate) const EPOCHS_PASSED_BY_SALVAGE: u64 = 1_000;

/// The newest version that is read: of a segment that carries. Readers of an older one would miss what it carries.
pub(crate) const VERSION: u32 = 3;
/// Of one that does not.
const VERSION_WITHOUT_TAIL: u32 = 2;
/// Of one that has no salt, either. Its readers take batches with one for a torn end.
const VERSION_WITHOUT_SALT: u32 = 1;

const MAGIC: [u8; 8] = *b"FBAYSEG1";
const CRC_AT: usize = 60;

/// Name of a segment's file.
pub(crate) fn segment_file(epoch: u64) -> String {
    format!("log-{epoch:010}.seg")
}

/// The epoch a file name belongs to.
pub(crate) fn parse_segment_file(name: &str) -> Option<u64> {
    let number = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    if number.len() == 10 { number.parse().ok() } else { None }
}

/// Name of a spare: an allocated, pre-written or recycled file that waits to become a segment.
pub(crate) fn spare_file(spare: u32) -> String {
    format!("spare-{spare:010}.seg")
}

/// The spare a file name belongs to.
pub(crate) fn parse_spare_file(name: &str) -> Option<u32> {
    let number = name.strip_prefix("spare-")?.strip_suffix(".seg")?;
    if number.len() == 10 { number.parse().ok() } else { None }
}

/// A file that waits to become a segment.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spare {
    pub(crate) number: u32,
    /// So much of it was written once, as zeros or as a segment; for the rest there is room and no more.
    pub(crate) written_bytes: u64,
}

/// What the first block of a segment says.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) epoch: u64,
    pub(crate) first_batch: BatchNo,
    pub(crate) salvaged_before: u64,
    pub(crate) salt: u64,
    pub(crate) carries_from: BatchNo,
}

/// Why a header was not accepted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum HeaderError {
    /// Not a header of this epoch, or damaged.
    Invalid,
    /// A sound header of a newer format.
    Newer(u32),
}

impl SegmentHeader {
    /// Appends the header block.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let at = out.len();
        out.resize(at + BLOCK, 0);
        let block = &mut out[at..];
        block[..8].copy_from_slice(&MAGIC);
        let version = match (self.carries_from, self.salt) {
            (0, 0) => VERSION_WITHOUT_SALT,
            (0, _) => VERSION_WITHOUT_TAIL,
            _ => VERSION,
        };
        block[8..12].copy_from_slice(&version.to_le_bytes());
        block[16..24].copy_from_slice(&self.epoch.to_le_bytes());
        block[24..32].copy_from_slice(&self.first_batch.to_le_bytes());
        block[32..40].copy_from_slice(&self.salvaged_before.to_le_bytes());
        block[40..48].copy_from_slice(&self.salt.to_le_bytes());
        block[48..56].copy_from_slice(&self.carries_from.to_le_bytes());
        let crc = checksum(self.epoch, 0, &block[..CRC_AT]);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
    }

    /// Whether a spare is what it should be: written with zeros and never used, or a segment of an epoch below this one.
    pub(crate) fn spare_is_from_before(
        disk: &dyn Disk,
        name: &str,
        epoch: u64,
    ) -> io::Result<bool> {
        let mut block = [0; CRC_AT + 4];
        disk.read_at(name, 0, &mut block)?;
        let was = SegmentHeader::decode(u64_at(&block, 16), &block);
        Ok(block.iter().all(|&byte| byte == 0) || was.is_ok_and(|header| header.epoch < epoch))
    }

    /// Reads the header of the segment whose file name says `epoch`. The checksum comes before the
    /// version: a flipped bit in the version is damage, not a newer format.
    pub(crate) fn decode(epoch: u64, bytes: &[u8]) -> Result<SegmentHeader, HeaderError> {
        if bytes.len() < CRC_AT + 4
            || bytes[..8] != MAGIC
            || u32_at(bytes, CRC_AT) != checksum(epoch, 0, &bytes[..CRC_AT])
        {
            return Err(HeaderError::Invalid);
        }
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(HeaderError::Newer(version));
        }
        let first_batch = u64_at(bytes, 24);
        if !(1..=BATCH_NO_MAX).contains(&first_batch) {
            return Err(HeaderError::Invalid);
        }
        Ok(SegmentHeader {
            epoch: u64_at(bytes, 16),
            first_batch,
            salvaged_before: u64_at(bytes, 32),
            salt: u64_at(bytes, 40),
            carries_from: u64_at(bytes, 48),
        })
    }

    /// Whether this batch, which comes before the segment, is not missed.
    pub(crate) fn stands_in_for(&self, number: BatchNo) -> bool {
        self.carries_from != 0 && (self.carries_from..self.first_batch).contains(&number)
    }
}

/// A segment as the running store sees it.
#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) epoch: u64,
    /// Messages whose durable copy is here: one for each queue a message is in.
    pub(crate) live: u64,
    /// Messages ever put here, counted likewise: with `used` they tell how much of it the live ones are.
    pub(crate) messages: u64,
    /// What the records of these take. The rest may be acknowledgements, however much it is.
    pub(crate) message_bytes: u64,
    /// The batch with the newest record that made something here dead.
    pub(crate) dead_batch: BatchNo,
    /// The first batch that says that the log begins behind this segment, which goes once that batch is synced.
    pub(crate) passed_by: Option<BatchNo>,
    /// The batch that ends this segment's checkpoint; the segments before are needed until it is synced.
    pub(crate) checkpoint_batch: BatchNo,
    /// Where the next batch begins, in bytes.
    pub(crate) used: u64,
    /// `used` beyond which, less one batch, the log goes on in the next segment. At least twice the
    /// checkpoint, so that checkpoints are never more than half of what is written.
    pub(crate) capacity: u64,
    /// Size of the file, in bytes.
    pub(crate) allocated: u64,
    /// Whether commits overwrite bytes the file already has (`fdatasync` then has no metadata to write).
    pub(crate) prewritten: bool,
}

impl Segment {
    /// A message of so many queues has its durable copy here, whose record takes so many bytes.
    pub(crate) fn put(&mut self, queues: u64, bytes: u64) {
        self.live += queues;
        self.messages += queues;
        self.message_bytes += bytes;
    }

    /// About how much of the segment is alive, in bytes, with what the padding of its batches takes.
    pub(crate) fn live_bytes(&self) -> u64 {
        self.live_share(self.used)
    }

    /// About how much it takes to copy what is alive, in bytes.
    pub(crate) fn copy_bytes(&self) -> u64 {
        self.live_share(self.message_bytes)
    }

    fn live_share(&self, bytes: u64) -> u64 {
        let share = u128::from(bytes) * u128::from(self.live) / u128::from(self.messages.max(1));
        u64::try_from(share).unwrap_or(u64::MAX).min(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: SegmentHeader = SegmentHeader {
        epoch: 12,
        first_batch: 99,
        salvaged_before: 3,
        salt: 77,
        carries_from: 98,
    };

    #[test]
    fn a_header_reads_back() {
        let mut block = Vec::new();
        HEADER.encode(&mut block);
        assert_eq!(block.len(), BLOCK);
        assert_eq!(SegmentHeader::decode(12, &block), Ok(HEADER));
        assert_eq!(SegmentHeader::decode(13, &block), Err(HeaderError::Invalid));
    }

    #[test]
    fn any_flipped_bit_of_a_header_is_noticed() {
        let mut block = Vec::new();
        HEADER.encode(&mut block);
        for bit in 0..64 * 8 {
            block[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SegmentHeader::decode(12, &block), Err(HeaderError::Invalid), "bit {bit}");
            block[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_sound_header_of_a_newer_version_is_told_from_damage() {
        let mut block = Vec::new();
        HEADER.encode(&mut block);
        block[8..12].copy_from_slice(&7u32.to_le_bytes());
        let crc = checksum(12, 0, &block[..CRC_AT]);
        block[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
        assert_eq!(SegmentHeader::decode(12, &block), Err(HeaderError::Newer(7)));
    }

    #[test]
    fn file_names_read_back() {
        assert_eq!(parse_segment_file(&segment_file(12)), Some(12));
        assert_eq!(parse_spare_file(&spare_file(7)), Some(7));
        assert_eq!(parse_segment_file("log-12.seg"), None);
        assert_eq!(parse_segment_file("spare-0000000012.seg"), None);
    }
}
