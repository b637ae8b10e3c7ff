//! Files that are not what the store wrote: a small sound store with changes made to it, after which the
//! checksums may be made right again, so that what is behind them is reached too.
//!
//! Checksums are computed here as `docs/storage-format.md` says, not by the store's own code.

use std::sync::OnceLock;

use forebay_store::{Disk, Durability, MemDisk, Options};

use super::op::Op;
use super::world::{World, options};

/// Changes of one input.
const CHANGES_MAX: usize = 24;

pub fn small() -> Options {
    options(true, Durability::Always)
}

/// Topology, messages in the log and in two runs, a second segment.
fn sound() -> MemDisk {
    static SOUND: OnceLock<MemDisk> = OnceLock::new();
    let disk = SOUND.get_or_init(|| {
        let mut world = World::new(small());
        let publish = |queue, bytes| Op::Publish { queue, fan_out: true, bytes, fill: 7 };
        let ops = [Op::Put { key: 1, bytes: 30 }, publish(0, 40), publish(1, 50), publish(0, 9)];
        let later = [
            Op::Pump { times: 1 },
            Op::Spill { queue: 1, skip: 0, count: 2 },
            Op::Spill { queue: 2, skip: 0, count: 1 },
            Op::Pump { times: 1 },
            Op::Settle { queue: 1, pick: 0, streak: 1 },
            Op::Pump { times: 2 },
        ];
        for op in ops.iter().chain(&later) {
            world.step(op);
        }
        world.disk.copy()
    });
    disk.fork()
}

/// Eight bytes are one change: which file, where, what, and whether checksums are mended after it.
pub fn forge(data: &[u8]) -> MemDisk {
    let disk = sound();
    for change in data.chunks_exact(8).take(CHANGES_MAX) {
        let names = disk.list().expect("it works");
        let Some(name) = names.get(usize::from(change[0]) % names.len().max(1)) else { break };
        let mut bytes = disk.bytes(name).expect("it was listed");
        if bytes.is_empty() {
            continue;
        }
        let at = usize::from(u16::from_le_bytes([change[1], change[2]])) % bytes.len();
        match change[3] % 8 {
            0 => bytes[at] ^= 1 << (change[4] % 8),
            1 => bytes[at] = change[4],
            2..=3 => {
                for (place, new) in bytes[at..].iter_mut().zip(&change[4..8]) {
                    *place = *new;
                }
            }
            4 => bytes.truncate(at),
            5 => {
                // A block somewhere else, as a write that went astray.
                let from = at / 4096 * 4096;
                let block = bytes[from..(from + 4096).min(bytes.len())].to_vec();
                let to = usize::from(change[4]) * 4096;
                bytes.resize(bytes.len().max(to + block.len()), 0);
                bytes[to..to + block.len()].copy_from_slice(&block);
            }
            6 => {
                disk.remove(name).expect("it was listed");
                continue;
            }
            _ => {
                let prefix = ["log", "run", "spare"][usize::from(change[4]) % 3];
                let suffix = if prefix == "run" { "run" } else { "seg" };
                disk.put(&format!("{prefix}-{:010}.{suffix}", change[5] % 8), &bytes);
            }
        }
        if change[3] & 128 != 0 {
            mend(name, &mut bytes);
        }
        disk.put(name, &bytes);
    }
    disk
}

/// Makes every checksum right that can be found.
fn mend(name: &str, bytes: &mut [u8]) {
    let Some(owner) = name.get(4..14).and_then(|number| number.parse::<u64>().ok()) else { return };
    if bytes.len() < 64 {
        return;
    }
    seal(bytes, owner, 0, 60, 0..60);
    if name.starts_with("run-") {
        let end = bytes.len() - 64;
        let mut at = 64;
        while at + 20 <= end {
            let next = at + 20 + u32_at(bytes, at + 4) as usize;
            if next > end {
                break;
            }
            seal(bytes, owner, at, at, at + 4..next);
            at = next;
        }
        seal(bytes, owner, end, end + 60, end..end + 60);
        return;
    }
    let owner = owner ^ salt(bytes);
    for head in (4096..bytes.len().saturating_sub(63)).step_by(4096) {
        if bytes[head..head + 4] != *b"FBAT" {
            continue;
        }
        seal(bytes, owner, head, head + 4, head + 8..head + 64);
        let end = (head + 64 + u32_at(bytes, head + 32) as usize).min(bytes.len());
        let mut at = head + 64;
        while at + 12 <= end {
            let next = at + 12 + u32_at(bytes, at + 4) as usize;
            if next > end {
                break;
            }
            seal(bytes, owner, at, at, at + 4..next);
            at = next;
        }
    }
}

/// What a segment's header says that its checksums are bound to, beside the epoch.
pub fn salt(segment: &[u8]) -> u64 {
    u64::from_le_bytes(segment[40..48].try_into().expect("eight bytes"))
}

/// The head of a batch that is not there, as one at `offset` of this segment.
pub fn head((epoch, salt): (u64, u64), offset: usize, number: u64, durable_upto: u64) -> [u8; 64] {
    let mut bytes = vec![0; offset + 64];
    let head = &mut bytes[offset..];
    head[..4].copy_from_slice(b"FBAT");
    for (at, value) in [(8, epoch), (16, number), (24, durable_upto), (40, salt)] {
        head[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    seal(&mut bytes, epoch ^ salt, offset, offset + 4, offset + 8..offset + 64);
    bytes[offset..].try_into().expect("64 bytes")
}

/// Puts the checksum of `covered`, which belongs to the place `offset`, at `to`.
fn seal(bytes: &mut [u8], owner: u64, offset: usize, to: usize, covered: std::ops::Range<usize>) {
    let crc = crc_fast::crc32_iscsi(&bytes[covered]) ^ mask(owner, offset as u64);
    bytes[to..to + 4].copy_from_slice(&crc.to_le_bytes());
}

fn mask(owner: u64, offset: u64) -> u32 {
    let mut x = owner.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.rotate_left(20);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (x ^ (x >> 31)) as u32
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[test]
fn mending_a_sound_file_changes_nothing() {
    let disk = sound();
    for name in disk.list().expect("it works").iter().filter(|name| !name.starts_with("spare")) {
        let bytes = disk.bytes(name).expect("it was listed");
        let mut mended = bytes.clone();
        mend(name, &mut mended);
        assert!(mended == bytes, "{name}");
        assert!(bytes.iter().any(|byte| *byte != 0));
    }
}
