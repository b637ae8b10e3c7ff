//! Receive buffers of a broker's sockets.
//!
//! Nothing but TCP reaches a publisher that asks for no confirms. Its data waits in the kernel, which bounds
//! each buffer and not their sum: 1000 publishers' receive buffers held 100 MB, and could have held many
//! times that. What all publishers' buffers may take together is given, and divided (64 MB in the same run).
//! Only among many: a size that was asked for ends the kernel's own search for it, and the window of a
//! connection that stands already stays where it was, at some 64 KiB. Over 10 ms that is 300 small messages a round trip,
//! whatever the size (measured: 30 000 msg/s in place of 500 000). What waits in the publishers' own send
//! buffers is theirs: no broker reaches that.

/// A buffer smaller than this is read too often, in bytes. From 64 KiB down it costs already: with 32 KiB each, 1000
/// publishers brought 400 000 msg/s in place of 500 000.
const LEAST_BYTES: u64 = 16 * 1024;
/// With a share of so much it is left to the kernel, which begins with this size, in bytes.
const KERNEL_BYTES: u64 = 128 * 1024;

/// The most that is asked for where the others have gone, in bytes. The system may allow less (`net.core.rmem_max`).
const MOST_BYTES: u64 = 1024 * 1024;

/// The receive buffer of each of so many connections that publish, in bytes: in steps, so that it seldom changes, from
/// 16 to 112 KiB; `None`: the kernel shall find it, unless its own search was ended before (`was_set`): then it is as much as
/// there is for each, in powers of two from 128 KiB to 1 MiB. `share_bytes` is what they may take together.
#[must_use]
pub fn receive_buffer_bytes(share_bytes: u64, publishers: usize, was_set: bool) -> Option<u64> {
    let each = share_bytes / publishers.max(1) as u64;
    if each < KERNEL_BYTES {
        return Some((each / LEAST_BYTES).max(1) * LEAST_BYTES);
    }
    was_set.then(|| 1 << each.min(MOST_BYTES).ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    #[test]
    fn a_thousand_publishers_share_and_a_few_have_what_the_kernel_finds() {
        let each = |publishers| receive_buffer_bytes(64 * MIB, publishers, false);
        assert_eq!(each(0), None);
        assert_eq!(each(512), None);
        assert_eq!(each(513), Some(112 * KIB));
        assert_eq!(each(1_000), Some(64 * KIB));
        assert_eq!(each(2_000), Some(32 * KIB));
        assert_eq!(each(100_000), Some(16 * KIB));
    }

    #[test]
    fn who_had_little_among_many_has_more_when_they_have_gone() {
        let each = |publishers| receive_buffer_bytes(64 * MIB, publishers, true);
        assert_eq!(each(1_000), Some(64 * KIB));
        assert_eq!(each(512), Some(128 * KIB));
        assert_eq!(each(200), Some(256 * KIB));
        assert_eq!(each(1), Some(MIB));
    }

    proptest! {
        #[test]
        fn together_they_take_no_more_than_their_share_and_no_less_than_half(
            share in 0..1u64 << 34, publishers in 1..100_000usize, was_set: bool,
        ) {
            let Some(each) = receive_buffer_bytes(share, publishers, was_set) else { return Ok(()) };
            prop_assert!((LEAST_BYTES..=MOST_BYTES).contains(&each));
            let all = u128::from(each) * publishers as u128;
            prop_assert!(all <= u128::from(share) || each == LEAST_BYTES);
            let least = share.min(MOST_BYTES * publishers as u64);
            prop_assert!(all * 2 > u128::from(least).saturating_sub(publishers as u128));
        }
    }
}
