//! Words for people and scripts, which nobody may be there to read: a full log disk or a closed terminal is no reason to end what
//! goes on, and `eprintln!` would end it.

/// A line on standard error, as `eprintln!` writes it.
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

/// The beginning of a line on standard error.
macro_rules! begin_to_say {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = write!(std::io::stderr(), $($words)*);
    }};
}

/// A line on standard output. Who closes it has read enough.
macro_rules! print_line {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}
