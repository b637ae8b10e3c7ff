//! What a program that stays says about a message.

use forebay::pipeline::Outcome;

/// Reads a line without its end: the first word counts, what follows is the program's own.
///
/// # Errors
/// A sentence: it is no answer.
pub(crate) fn read(line: &str) -> Result<Outcome, String> {
    match line.split_whitespace().next() {
        Some("ack") => Ok(Outcome::Ack),
        Some("reject") => Ok(Outcome::Reject),
        Some("requeue") => Ok(Outcome::Requeue),
        _ => {
            let shown: String = line.chars().take(80).collect();
            Err(format!("'{shown}' is no answer; a line begins with ack, reject or requeue"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_counts() {
        assert_eq!(read("ack"), Ok(Outcome::Ack));
        assert_eq!(read("  reject\tno such order"), Ok(Outcome::Reject));
        assert_eq!(read("requeue later\r"), Ok(Outcome::Requeue));
        for nonsense in ["", " ", "acknowledged", "ACK", "ok"] {
            assert!(read(nonsense).unwrap_err().contains("no answer"), "{nonsense}");
        }
        assert!(read(&"x".repeat(1_000)).unwrap_err().len() < 200);
    }
}
