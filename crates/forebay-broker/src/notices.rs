//! What an operator should find in the log. The shell writes it; a shard has none.

use std::collections::VecDeque;
use std::fmt;

use crate::shard::Shard;

/// Notices that wait to be taken; what comes beyond is counted and told with the next ones. Whoever tries passwords by the thousand
/// does not fill memory by that.
pub const NOTICES_MAX: usize = 64;

/// The longest name that is told, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// Somebody may not log in.
    LoginRefused {
        /// From where.
        address: String,
        /// Who that wanted to be.
        user: String,
        /// The reason, which the client is not told.
        why: String,
    },
    /// A client was told an error that ended its connection.
    ConnectionClosed {
        /// From where it came.
        address: String,
        /// As whom it had logged in, if it had.
        user: Option<String>,
        /// The reply code, for instance 540.
        code: u16,
        /// The reply text, for instance `NOT_IMPLEMENTED - x-queue-type 'stream'`.
        text: String,
    },
    /// Publishers are told to wait, for this reason.
    Alarm(&'static str),
    /// They may go on.
    AlarmOver,
    /// A salvage found messages of a queue, and not its declaration.
    DeclarationLost {
        /// The durable queue that they are in now, of the first virtual host.
        queue: String,
        /// How many.
        messages: u64,
    },
    /// So many notices were left out.
    More(u64),
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Notice::LoginRefused { address, user, why } => {
                write!(f, "refused a login from {address} as {user:?}: {why}")
            }
            Notice::ConnectionClosed { address, user, code, text } => {
                let text = one_line(text);
                match user {
                    Some(user) => write!(f, "closed {address} (user {user}): {code} {text}"),
                    None => write!(f, "closed {address} (not logged in): {code} {text}"),
                }
            }
            Notice::Alarm(reason) => write!(f, "publishers are blocked: {reason}"),
            Notice::AlarmOver => f.write_str("publishers are let go on"),
            Notice::DeclarationLost { queue, messages } => write!(
                f,
                "{messages} messages of a queue whose declaration is lost are in the queue {queue}"
            ),
            Notice::More(count) => write!(f, "{count} notices more, which were not kept"),
        }
    }
}

/// Those that nobody has taken yet.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    waiting: VecDeque<Notice>,
    left_out: u64,
}

impl Notices {
    pub(crate) fn tell(&mut self, notice: Notice) {
        if self.waiting.len() < NOTICES_MAX {
            self.waiting.push_back(notice);
        } else {
            self.left_out += 1;
        }
    }

    /// The oldest; how many were left out comes last.
    pub(crate) fn take(&mut self) -> Option<Notice> {
        self.waiting.pop_front().or_else(|| {
            let count = std::mem::take(&mut self.left_out);
            (count > 0).then_some(Notice::More(count))
        })
    }
}

impl Shard {
    /// The next thing that an operator should know. Taken after each step, there are few.
    pub fn take_notice(&mut self) -> Option<Notice> {
        self.notices.take()
    }
}

/// A name as it may stand in a log.
pub(crate) fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(&name[..name.len().min(NAME_BYTES_MAX)]).into_owned()
}

/// A text with the names that a client gave may hold anything, and is one line in a log.
fn one_line(text: &str) -> String {
    text.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_their_number_is_told() {
        let mut notices = Notices::default();
        for _ in 0..NOTICES_MAX + 3 {
            notices.tell(Notice::AlarmOver);
        }
        let told: Vec<Notice> = std::iter::from_fn(|| notices.take()).collect();
        assert_eq!(told.len(), NOTICES_MAX + 1);
        assert_eq!(told[NOTICES_MAX], Notice::More(3));
        assert_eq!(notices.take(), None);
    }

    #[test]
    fn a_name_that_a_stranger_gave_is_one_short_line() {
        let user = shown(&[b"a\nb".as_slice(), &[b'x'; 300]].concat());
        let refused = Notice::LoginRefused { address: "1.2.3.4:5".into(), user, why: "no".into() };
        let line = refused.to_string();
        assert!(line.starts_with("refused a login from 1.2.3.4:5 as \"a\\nbxx"), "{line}");
        assert!(line.len() < 150 && !line.contains('\n'), "{line}");
        let closed = Notice::ConnectionClosed {
            address: "1.2.3.4:5".into(),
            user: Some("guest".into()),
            code: 404,
            text: "NOT_FOUND - no 'a\nb'".into(),
        };
        assert_eq!(closed.to_string(), "closed 1.2.3.4:5 (user guest): 404 NOT_FOUND - no 'a?b'");
    }
}
