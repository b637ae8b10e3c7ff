//! Numbers as people read them.

/// `12.3 MB`
pub(crate) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// `1,234,567`
pub(crate) fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `850 µs`, `12.3 ms`, `1.50 s`
pub(crate) fn duration(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} µs"),
        1_000..1_000_000 => format!("{:.1} ms", us as f64 / 1e3),
        _ => format!("{:.2} s", us as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        let shown = [0, 12, 999, 1_000, 1_234_567].map(thousands);
        assert_eq!(shown, ["0", "12", "999", "1,000", "1,234,567"]);
        assert_eq!([7, 1_250, 2_500_000].map(duration), ["7 µs", "1.2 ms", "2.50 s"]);
    }
}
