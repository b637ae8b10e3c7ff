//! Message-ids of one publisher: a prefix that no other publisher has, and a number.

/// The text of the id last asked for, kept for its memory.
#[derive(Debug)]
pub(super) struct MessageId {
    text: String,
    prefix_bytes: usize,
}

impl MessageId {
    pub(super) fn new(prefix: &str) -> MessageId {
        MessageId { text: prefix.to_owned(), prefix_bytes: prefix.len() }
    }

    pub(super) fn prefix(&self) -> &str {
        &self.text[..self.prefix_bytes]
    }

    /// The id of message `number`.
    pub(super) fn of(&mut self, number: u64) -> &str {
        self.text.truncate(self.prefix_bytes);
        push_number(&mut self.text, number);
        &self.text
    }

    /// The number in an id that is ours.
    pub(super) fn number_of(&self, id: &[u8]) -> Option<u64> {
        let digits = id.strip_prefix(&self.text.as_bytes()[..self.prefix_bytes])?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    }
}

/// Appends a number in decimal; `format!` costs several times as much.
fn push_number(text: &mut String, mut number: u64) {
    let mut digits = [0_u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    text.push_str(std::str::from_utf8(&digits[at..]).expect("digits are ASCII"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_leads_back_to_its_number() {
        let mut id = MessageId::new("p-");
        for number in [0, 1, 9, 10, 12_345, u64::MAX] {
            let text = id.of(number).to_owned();
            assert_eq!(text, format!("p-{number}"));
            assert_eq!(id.number_of(text.as_bytes()), Some(number));
        }
        assert_eq!(id.number_of(b"q-1"), None);
        assert_eq!(id.number_of(b"p-x"), None);
    }
}
