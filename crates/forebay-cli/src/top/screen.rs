//! Standard output as a live view: a screen of its own on a terminal, text after text elsewhere.

use std::io::{self, IsTerminal, Write};

use super::view::Size;

/// What is drawn on; a terminal gets its old contents back when this is dropped.
#[derive(Debug)]
pub(super) struct Screen {
    terminal: bool,
    drawn: bool,
}

impl Screen {
    pub(super) fn new() -> Screen {
        Screen { terminal: io::stdout().is_terminal(), drawn: false }
    }

    /// How much there is room for.
    pub(super) fn size(&self) -> Size {
        if !self.terminal {
            return Size { columns: usize::MAX, lines: None };
        }
        match rustix::termios::tcgetwinsize(io::stdout()) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
                Size { columns: size.ws_col.into(), lines: Some(size.ws_row.into()) }
            }
            _ => Size { columns: 80, lines: Some(24) },
        }
    }

    /// Draws, in place of what was drawn before if that is possible.
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        let mut text = String::new();
        if self.terminal {
            if !self.drawn {
                // The other screen, without a cursor.
                text.push_str("\x1b[?1049h\x1b[?25l");
            }
            text.push_str("\x1b[H");
            // No line end after the last one: it would scroll.
            let drawn: Vec<String> = lines.iter().map(|line| format!("{line}\x1b[K")).collect();
            text.push_str(&drawn.join("\r\n"));
            text.push_str("\x1b[J");
        } else {
            if self.drawn {
                text.push('\n');
            }
            for line in lines {
                text.push_str(line);
                text.push('\n');
            }
        }
        self.drawn = true;
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if self.terminal && self.drawn {
            // A terminal that is gone needs no cleaning up.
            let _ = io::stdout().write_all(b"\x1b[?25h\x1b[?1049l");
            let _ = io::stdout().flush();
        }
    }
}
