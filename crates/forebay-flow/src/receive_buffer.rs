//! Receive buffers of a broker's sockets.
//!
//! Nothing but TCP reaches a publisher that asks for no confirms. Its data waits in the kernel, which bounds
//! each buffer and not their sum: 1000 publishers' receive buffers held 100 MB, and could have held many
//! times that. What all publishers' buffers may take together is given, and divided (32 MB in the same run);
//! few publishers get as much as a long way to the broker needs. What waits in the publishers' own send
//! buffers is theirs: no broker reaches that.

/// A buffer smaller than this is read too often, in bytes.
const LEAST_BYTES: u64 = 16 * 1024;
/// 40 MB/s over 100 ms need no more, in bytes.
const MOST_BYTES: u64 = 4 * 1024 * 1024;

/// The receive buffer of each of so many connections that publish, in bytes: a power of two, so that it
/// seldom changes, between 16 KiB and 4 MiB. `share_bytes` is what they may take together.
#[must_use]
pub fn receive_buffer_bytes(share_bytes: u64, publishers: usize) -> u64 {
    let each = (share_bytes / publishers.max(1) as u64).clamp(LEAST_BYTES, MOST_BYTES);
    1 << each.ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    #[test]
    fn a_thousand_publishers_share_what_a_few_have_to_themselves() {
        let each = |publishers| receive_buffer_bytes(32 * MIB, publishers);
        assert_eq!(each(0), 4 * MIB);
        assert_eq!(each(8), 4 * MIB);
        assert_eq!(each(9), 2 * MIB);
        assert_eq!(each(1_000), 32 * KIB);
        assert_eq!(each(100_000), 16 * KIB);
    }

    proptest! {
        #[test]
        fn together_they_take_no_more_than_their_share_and_no_less_than_half(
            share in 0..u64::MAX, publishers in 1..100_000usize,
        ) {
            let each = receive_buffer_bytes(share, publishers);
            prop_assert!((LEAST_BYTES..=MOST_BYTES).contains(&each));
            let all = u128::from(each) * publishers as u128;
            prop_assert!(all <= u128::from(share) || each == LEAST_BYTES);
            prop_assert!(all * 2 > u128::from(share).saturating_sub(publishers as u128) || each == MOST_BYTES);
        }
    }
}
