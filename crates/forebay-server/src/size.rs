//! Sizes as people write them: `256MB`, `1GiB`, `4096`.

use serde::de::{Deserialize, Deserializer, Error, Visitor};
use std::fmt;
use std::str::FromStr;

/// A number of bytes.
///
/// Without a unit the number counts bytes. `kB`, `MB`, `GB`, `TB`, `PB` are powers of 1000; `KiB`, `MiB`,
/// `GiB`, `TiB`, `PiB` (or just `k`, `M`, `G`, `T`, `P`) are powers of 1024. Letter case does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// The text is not a size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError(String);

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not a size: a whole number of bytes, such as 4096, or one with a unit from kB to PB or from KiB to \
             PiB, such as 256MB or 1GiB",
            self.0
        )
    }
}

impl std::error::Error for SizeError {}

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Size, SizeError> {
        let error = || SizeError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit()).unwrap_or(trimmed.len());
        let (digits, unit) = trimmed.split_at(split);
        let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => 1000,
            "mb" => 1000 * 1000,
            "gb" => 1000 * 1000 * 1000,
            "tb" => 1000 * 1000 * 1000 * 1000,
            "pb" => 1000 * 1000 * 1000 * 1000 * 1000,
            "k" | "ki" | "kib" => 1 << 10,
            "m" | "mi" | "mib" => 1 << 20,
            "g" | "gi" | "gib" => 1 << 30,
            "t" | "ti" | "tib" => 1 << 40,
            "p" | "pi" | "pib" => 1 << 50,
            _ => return Err(error()),
        };
        let number: u64 = digits.parse().map_err(|_| error())?;
        number.checked_mul(factor).map(Size).ok_or_else(error)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Size, D::Error> {
        struct SizeVisitor;
        impl Visitor<'_> for SizeVisitor {
            type Value = Size;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"256MB\", \"1GiB\" or 4096")
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Size, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: Error>(self, bytes: i64) -> Result<Size, E> {
                u64::try_from(bytes).map(Size).map_err(|_| E::custom("a size cannot be negative"))
            }
            fn visit_u64<E: Error>(self, bytes: u64) -> Result<Size, E> {
                Ok(Size(bytes))
            }
        }
        deserializer.deserialize_any(SizeVisitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_decimal_with_b_and_binary_with_i_or_alone() {
        let check = |text: &str, bytes| assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        check("4096", 4096);
        check("256MB", 256_000_000);
        check("256 mb", 256_000_000);
        check("1GiB", 1 << 30);
        check("64k", 65_536);
        check("2T", 2 << 40);
        check("3PB", 3_000_000_000_000_000);
        check("1PiB", 1 << 50);
    }

    #[test]
    fn anything_else_is_refused_with_the_text_in_the_message() {
        for text in ["", "MB", "-1", "12 parsecs", "1.5GB", "99999999999999999999", "20000000TB"] {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.to_string().starts_with(&format!("`{text}` is not a size")), "{error}");
        }
    }
}
