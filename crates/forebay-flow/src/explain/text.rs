//! An explanation as lines of text.

use std::fmt;

use super::Explanation;

/// A name that others chose, as a terminal may be shown it, which would do what stands in it: control characters are replaced, and so
/// is the end of a line.
#[must_use]
pub fn printable(name: &str) -> String {
    name.replace(char::is_control, "\u{FFFD}")
}

/// `850 us`, `12.3 ms`, `1.50 s`
pub(super) struct Duration(pub(super) u64);

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            us @ 0..1_000 => format!("{us} us"),
            us @ 1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
            us => format!("{:.2} s", us as f64 / 1e6),
        };
        f.pad(&text)
    }
}

/// A line a segment, in the order of the way: its share of all the time, its mean over the messages that had it, its
/// longest, and its name.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mean = |sum_us: u64, messages: u64| Duration(sum_us / messages.max(1));
        let (messages, total_us) = (self.messages(), self.total_us());
        match messages {
            0 => return f.write_str("no message was marked"),
            1 => write!(f, "1 message, {} from end to end", Duration(total_us))?,
            _ => {
                write!(f, "{messages} messages, {} each from end to end", mean(total_us, messages))?
            }
        }
        for share in self.shares() {
            let percent = share.sum_us as f64 * 100.0 / total_us.max(1) as f64;
            let (mean, longest) = (mean(share.sum_us, share.messages), Duration(share.max_us));
            let name = share.segment.name();
            write!(f, "\n  {percent:5.1} %  {mean:>8}, at most {longest:>8}  {name}")?;
        }
        if self.skew_us() > 0 {
            write!(f, "\nclocks disagree by {} at least", Duration(self.skew_us()))?;
        }
        Ok(())
    }
}
