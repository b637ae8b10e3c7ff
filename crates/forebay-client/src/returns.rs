//! Mandatory messages that came back, kept for the user of a channel until he looks.

use std::collections::VecDeque;

use crate::machine::Returned;
use crate::received::Received;

/// Bound of the returned messages kept for a channel; older ones make room.
pub const RETURNS_KEPT_MAX: usize = 10_000;
/// Bound of their bytes, though the latest is kept whatever its size.
pub const RETURNS_BYTES_MAX: usize = 64 << 20;

/// A message of ours that no queue took, owned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReturnedMessage {
    /// 312 when no queue was bound.
    pub reply_code: u16,
    /// For instance `NO_ROUTE`.
    pub reply_text: String,
    /// What was published.
    pub message: Received,
}

/// Those of one channel, oldest first.
#[derive(Debug, Default)]
pub(crate) struct Returns {
    kept: VecDeque<ReturnedMessage>,
    bytes: usize,
}

impl Returns {
    pub(crate) fn push(&mut self, returned: &Returned<'_>) {
        let message = Received::from_returned(returned);
        self.bytes += message.size_bytes();
        self.kept.push_back(ReturnedMessage {
            reply_code: returned.reply_code,
            reply_text: returned.reply_text.to_string(),
            message,
        });
        while self.kept.len() > 1
            && (self.kept.len() > RETURNS_KEPT_MAX || self.bytes > RETURNS_BYTES_MAX)
        {
            let oldest = self.kept.pop_front();
            self.bytes -= oldest.map_or(0, |oldest| oldest.message.size_bytes());
        }
    }

    pub(crate) fn take(&mut self) -> VecDeque<ReturnedMessage> {
        std::mem::take(self).kept
    }
}

#[cfg(test)]
mod tests {
    use forebay_wire::{RawProperties, ShortStr};

    use super::*;

    fn push(returns: &mut Returns, reply_code: u16, body: &[u8]) {
        let none = ShortStr::truncated("");
        returns.push(&Returned {
            channel: 1,
            reply_code,
            reply_text: none,
            exchange: none,
            routing_key: none,
            properties: RawProperties::validate(&[0, 0]).unwrap(),
            body,
        });
    }

    fn codes(returns: &mut Returns) -> Vec<u16> {
        returns.take().iter().map(|returned| returned.reply_code).collect()
    }

    #[test]
    fn the_latest_stay_within_both_bounds() {
        let mut returns = Returns::default();
        let most = RETURNS_KEPT_MAX as u16;
        (0..most + 5).for_each(|code| push(&mut returns, code, b"small"));
        assert_eq!(codes(&mut returns), (5..most + 5).collect::<Vec<_>>());

        let third = vec![0; RETURNS_BYTES_MAX / 3];
        (0..4).for_each(|code| push(&mut returns, code, &third));
        assert_eq!(
            codes(&mut returns),
            [2, 3],
            "three of them and what is beside them are too much"
        );
        (0..2).for_each(|code| push(&mut returns, code, &third));
        assert_eq!(codes(&mut returns), [0, 1], "what was taken counts no more");
    }

    #[test]
    fn a_message_beyond_the_bound_is_kept_alone() {
        let mut returns = Returns::default();
        push(&mut returns, 1, b"small");
        push(&mut returns, 2, &vec![0; RETURNS_BYTES_MAX]);
        assert_eq!(codes(&mut returns), [2]);
        push(&mut returns, 3, b"small");
        assert_eq!(codes(&mut returns), [3]);
    }
}
