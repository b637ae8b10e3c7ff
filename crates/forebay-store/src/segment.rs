//! A segment of the log: its file and its header.

/// Name of a segment's file.
pub(crate) fn segment_file(epoch: u64) -> String {
    format!("log-{epoch:010}.seg")
}

/// The epoch a file name belongs to.
pub(crate) fn parse_segment_file(name: &str) -> Option<u64> {
    let number = name.strip_prefix("log-")?.strip_suffix(".seg")?;
    if number.len() == 10 { number.parse().ok() } else { None }
}

/// Name of a spare: a pre-written or recycled file that waits to become a segment.
pub(crate) fn spare_file(spare: u32) -> String {
    format!("spare-{spare:010}.seg")
}

/// The spare a file name belongs to.
pub(crate) fn parse_spare_file(name: &str) -> Option<u32> {
    let number = name.strip_prefix("spare-")?.strip_suffix(".seg")?;
    if number.len() == 10 { number.parse().ok() } else { None }
}
