//! What is set by hand or tunes itself: the window of a publisher, the credit of a consumer.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A larger window is a mistake.
const WINDOW_MAX: u32 = 1 << 24;

/// How many messages a publisher may have unconfirmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Window {
    /// It asks for no confirms.
    None,
    /// So many, set by hand; from 1 on.
    Fixed(u32),
    /// The window tunes itself.
    Auto,
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Window::None => f.pad("none"),
            Window::Fixed(messages) => f.pad(&messages.to_string()),
            Window::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Window {
    type Err = String;

    fn from_str(text: &str) -> Result<Window, String> {
        match (text, text.parse::<u32>()) {
            ("auto", _) => Ok(Window::Auto),
            ("none", _) | (_, Ok(0)) => Ok(Window::None),
            (_, Ok(messages)) if messages <= WINDOW_MAX => Ok(Window::Fixed(messages)),
            _ => {
                Err(format!("`{text}` is not a window: auto, none, or a number up to {WINDOW_MAX}"))
            }
        }
    }
}

/// How many messages a consumer may hold unacknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Credit {
    /// As many as the broker has.
    Unbounded,
    /// So many, set by hand; from 1 on.
    Fixed(u16),
    /// The credit tunes itself.
    Auto,
}

impl fmt::Display for Credit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Credit::Unbounded => f.pad("none"),
            Credit::Fixed(messages) => f.pad(&messages.to_string()),
            Credit::Auto => f.pad("auto"),
        }
    }
}

impl FromStr for Credit {
    type Err = String;

    fn from_str(text: &str) -> Result<Credit, String> {
        match (text, text.parse::<u16>()) {
            ("auto", _) => Ok(Credit::Auto),
            ("none", _) | (_, Ok(0)) => Ok(Credit::Unbounded),
            (_, Ok(messages)) => Ok(Credit::Fixed(messages)),
            _ => Err(format!("`{text}` is not a prefetch: auto, none, or a number up to 65535")),
        }
    }
}

impl From<Window> for String {
    fn from(window: Window) -> String {
        window.to_string()
    }
}

impl TryFrom<String> for Window {
    type Error = String;

    fn try_from(text: String) -> Result<Window, String> {
        text.parse()
    }
}

impl From<Credit> for String {
    fn from(credit: Credit) -> String {
        credit.to_string()
    }
}

impl TryFrom<String> for Credit {
    type Error = String;

    fn try_from(text: String) -> Result<Credit, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_they_are_written() {
        for (text, window) in
            [("auto", Window::Auto), ("none", Window::None), ("12", Window::Fixed(12))]
        {
            assert_eq!((text.parse(), window.to_string()), (Ok(window), text.to_owned()));
        }
        assert_eq!("0".parse(), Ok(Window::None));
        assert!("17000000".parse::<Window>().unwrap_err().contains("16777216"));
        assert!("many".parse::<Window>().is_err());
        for (text, credit) in
            [("auto", Credit::Auto), ("none", Credit::Unbounded), ("9", Credit::Fixed(9))]
        {
            assert_eq!((text.parse(), credit.to_string()), (Ok(credit), text.to_owned()));
        }
        assert!("70000".parse::<Credit>().unwrap_err().contains("65535"));
    }
}
