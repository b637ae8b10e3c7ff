//! Checksums that know where they stand.
//!
//! Segments are recycled without being wiped, so bytes of an earlier life lie where a reader may look.
//! They carry a checksum that was right, once, there. Every checksum on disk is therefore CRC-32C of
//! the bytes, XORed with a mask made of the owner (segment epoch or run number) and the offset: bytes
//! of another life, of another file or of another place do not validate.
//!
//! Payloads lie there as well, and who publishes them may know epoch and offset. What is in a segment is therefore bound to
//! a number too that only the directory knows, its salt.

/// CRC-32C of `bytes`, bound to their owner and their offset in it.
#[inline]
pub(crate) fn checksum(owner: u64, offset: u64, bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes) ^ mask(owner, offset)
}

/// The owner of what is in a segment; its header is bound to the epoch alone.
#[inline]
pub(crate) const fn owner(epoch: u64, salt: u64) -> u64 {
    epoch ^ salt
}

/// The part of a checksum that says where it belongs. A bijective mix (the finaliser of SplitMix64),
/// so neighbouring offsets and epochs give unrelated masks.
#[inline]
pub(crate) fn mask(owner: u64, offset: u64) -> u32 {
    let mut mixed = owner.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset.rotate_left(20);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (mixed ^ (mixed >> 31)) as u32
}

/// Reads a little-endian `u32` at `at`; the caller has checked the bounds.
#[inline]
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// Reads a little-endian `u64` at `at`; the caller has checked the bounds.
#[inline]
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_bytes_elsewhere_have_another_checksum() {
        let here = checksum(1, 4096, b"bytes");
        assert_eq!(here, checksum(1, 4096, b"bytes"));
        assert_ne!(here, checksum(2, 4096, b"bytes"));
        assert_ne!(here, checksum(1, 8192, b"bytes"));
        assert_ne!(here, checksum(1, 4096, b"bytez"));
    }

    #[test]
    fn crc_is_castagnoli() {
        assert_eq!(crc_fast::crc32_iscsi(b"123456789"), 0xE306_9283);
    }
}
