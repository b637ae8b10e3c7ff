//! Frames: the unit of everything on an AMQP connection after the protocol header.
//!
//! ```text
//!  0      1         3             7                    7 + size      8 + size
//!  +------+---------+-------------+--------------------+-----------+
//!  | kind | channel | size        | payload            | frame-end |     clause 4.2.3
//!  | u8   | u16     | u32         | `size` bytes       | 0xCE      |
//!  +------+---------+-------------+--------------------+-----------+
//!  <----------- head -----------> <- what is counted -> <- checked ->
//!
//!  kind 1  method      payload = class id u16, method id u16, arguments     clause 4.2.4
//!  kind 2  header      payload = class id u16, weight u16, body size u64,
//!                                property flags, property list              clause 4.2.6.1
//!  kind 3  body        payload = a piece of the content                     clause 4.2.6.2
//!  kind 8  heartbeat   payload empty, channel 0                             clause 4.2.7
//! ```
//!
//! All integers are in network byte order. The negotiated `frame-max` counts the whole frame, head
//! and end octet included (clause 1.4.2.5).

use std::fmt;

/// The octet that closes every frame, 0xCE (clause 4.2.3).
pub const FRAME_END: u8 = 206;
/// Kind, channel and size: what precedes the payload.
pub const FRAME_HEAD_BYTES: usize = 7;
/// What a frame costs beside its payload: the head and the end octet.
pub const FRAME_OVERHEAD_BYTES: usize = FRAME_HEAD_BYTES + 1;
/// `frame-min-size` of the specification: every peer takes frames this big, also before tuning.
pub const FRAME_MIN_SIZE_BYTES: u32 = 4096;

/// What a frame carries (clause 4.2.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FrameKind {
    /// A method: class, method id and arguments.
    Method = 1,
    /// A content header: body size and properties.
    Header = 2,
    /// A piece of a content body.
    Body = 3,
    /// A sign of life; its payload is empty.
    Heartbeat = 8,
}

impl FrameKind {
    /// The kind written as `octet`; `None` for octets the specification does not define.
    #[inline]
    pub const fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            1 => Some(Self::Method),
            2 => Some(Self::Header),
            3 => Some(Self::Body),
            8 => Some(Self::Heartbeat),
            _ => None,
        }
    }
}

/// One whole frame, borrowed from the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// What the payload is.
    pub kind: FrameKind,
    /// The channel; 0 is the connection itself.
    pub channel: u16,
    /// The bytes between head and end octet, not yet interpreted.
    pub payload: &'a [u8],
}

impl Frame<'_> {
    /// Bytes this frame took from the input: payload and overhead.
    #[inline]
    pub fn size_bytes(&self) -> usize {
        self.payload.len() + FRAME_OVERHEAD_BYTES
    }
}

/// Why the input cannot be a frame. Every case is 501 `FRAME_ERROR` for the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The first octet is no known frame kind.
    UnknownKind(u8),
    /// The frame is larger than was agreed.
    TooLarge {
        /// The whole frame as its head announces it.
        size_bytes: u64,
        /// The limit it breaks.
        max_bytes: u32,
    },
    /// This octet stands where [`FRAME_END`] belongs.
    BadEnd(u8),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::UnknownKind(octet) => write!(f, "unknown frame type {octet}"),
            Self::TooLarge { size_bytes, max_bytes } => write!(
                f,
                "frame of {size_bytes} bytes is larger than the negotiated maximum of {max_bytes} bytes"
            ),
            Self::BadEnd(octet) => {
                write!(f, "frame ends with octet {octet} instead of {FRAME_END}")
            }
        }
    }
}

impl std::error::Error for FrameError {}

/// Reads the frame at the start of `input`.
///
/// `Ok(None)` says the frame is not complete yet; come back with more bytes. `frame_max_bytes` counts
/// the whole frame, 0 means no limit. A frame that is wrong is refused as soon as the bytes at hand
/// show it, so an oversized frame is never waited for.
#[inline]
pub fn read_frame(input: &[u8], frame_max_bytes: u32) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((head, rest)) = input.split_first_chunk::<FRAME_HEAD_BYTES>() else {
        return match input.first() {
            Some(&octet) if FrameKind::from_octet(octet).is_none() => {
                Err(FrameError::UnknownKind(octet))
            }
            _ => Ok(None),
        };
    };
    let Some(kind) = FrameKind::from_octet(head[0]) else {
        return Err(FrameError::UnknownKind(head[0]));
    };
    let channel = u16::from_be_bytes([head[1], head[2]]);
    let payload_bytes = u32::from_be_bytes([head[3], head[4], head[5], head[6]]);
    let size_bytes = u64::from(payload_bytes) + FRAME_OVERHEAD_BYTES as u64;
    if frame_max_bytes != 0 && size_bytes > u64::from(frame_max_bytes) {
        return Err(FrameError::TooLarge { size_bytes, max_bytes: frame_max_bytes });
    }
    let Some((payload, rest)) = rest.split_at_checked(payload_bytes as usize) else {
        return Ok(None);
    };
    match rest.first() {
        Some(&FRAME_END) => Ok(Some(Frame { kind, channel, payload })),
        Some(&octet) => Err(FrameError::BadEnd(octet)),
        None => Ok(None),
    }
}

/// The size of the whole frame as its head announces it, without validation; `None` while the head
/// is incomplete. Serves to size a read buffer.
#[inline]
pub fn frame_size_bytes(input: &[u8]) -> Option<usize> {
    let size = input.get(3..FRAME_HEAD_BYTES)?.first_chunk::<4>()?;
    Some((u32::from_be_bytes(*size) as usize).saturating_add(FRAME_OVERHEAD_BYTES))
}

/// A body is copied in parts of so many bytes: for some KiB and more glibc has the processor copy by itself (`rep movsb`), which
/// some (AMD Zen 3) do slowly where source and destination lie at about the same place of their pages, as they do when a large
/// body is cut into frames.
const COPY_BYTES: usize = 1024;

/// Appends a body frame. The caller keeps `payload` within frame-max − 8 bytes.
#[inline]
pub fn write_body_frame(out: &mut Vec<u8>, channel: u16, payload: &[u8]) {
    out.reserve(payload.len() + FRAME_OVERHEAD_BYTES);
    let start = begin_frame(out, FrameKind::Body, channel);
    for part in payload.chunks(COPY_BYTES) {
        out.extend_from_slice(part);
    }
    end_frame(out, start);
}

/// Appends a heartbeat frame (clause 4.2.7): eight bytes on channel 0.
pub fn write_heartbeat(out: &mut Vec<u8>) {
    let start = begin_frame(out, FrameKind::Heartbeat, 0);
    end_frame(out, start);
}

/// Appends a head with an open size; returns where the frame starts, for [`end_frame`].
#[inline]
pub(crate) fn begin_frame(out: &mut Vec<u8>, kind: FrameKind, channel: u16) -> usize {
    let start = out.len();
    let [high, low] = channel.to_be_bytes();
    out.extend_from_slice(&[kind as u8, high, low, 0, 0, 0, 0]);
    start
}

/// Fills in the size of the frame that starts at `start` and appends the end octet.
#[inline]
pub(crate) fn end_frame(out: &mut Vec<u8>, start: usize) {
    let payload_bytes = out.len() - start - FRAME_HEAD_BYTES;
    debug_assert!(u32::try_from(payload_bytes).is_ok(), "frame payload over 4 GiB");
    out[start + 3..start + FRAME_HEAD_BYTES].copy_from_slice(&(payload_bytes as u32).to_be_bytes());
    out.push(FRAME_END);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_read_with_channel_and_payload() {
        for kind in [FrameKind::Method, FrameKind::Header, FrameKind::Body, FrameKind::Heartbeat] {
            let input = [kind as u8, 1, 2, 0, 0, 0, 3, 7, 8, 9, FRAME_END, 99];
            let frame = read_frame(&input, 4096).unwrap().unwrap();
            assert_eq!(frame, Frame { kind, channel: 0x0102, payload: &[7, 8, 9] });
            assert_eq!(frame.size_bytes(), 11);
            assert_eq!(FrameKind::from_octet(kind as u8), Some(kind));
        }
    }

    #[test]
    fn an_unknown_kind_is_refused_at_the_first_byte() {
        for octet in (0..=255).filter(|octet| ![1, 2, 3, 8].contains(octet)) {
            assert_eq!(read_frame(&[octet], 0), Err(FrameError::UnknownKind(octet)));
            let input = [octet, 0, 0, 0, 0, 0, 0, FRAME_END];
            assert_eq!(read_frame(&input, 0), Err(FrameError::UnknownKind(octet)));
        }
        assert_eq!(read_frame(&[], 0), Ok(None));
    }

    #[test]
    fn frame_max_counts_the_whole_frame() {
        let mut out = Vec::new();
        write_body_frame(&mut out, 1, &[0; 4088]);
        assert_eq!(out.len(), 4096);
        assert!(read_frame(&out, 4096).unwrap().is_some());
        let error = FrameError::TooLarge { size_bytes: 4096, max_bytes: 4095 };
        assert_eq!(read_frame(&out, 4095), Err(error));
        // The head suffices to know.
        assert_eq!(read_frame(&out[..7], 4095), Err(error));
        assert!(read_frame(&out, 0).unwrap().is_some());
    }

    #[test]
    fn the_largest_size_neither_overflows_nor_waits() {
        let head = [3, 0, 1, 0xff, 0xff, 0xff, 0xff];
        let error = FrameError::TooLarge { size_bytes: 0x1_0000_0007, max_bytes: u32::MAX };
        assert_eq!(read_frame(&head, u32::MAX), Err(error));
        assert_eq!(read_frame(&head, 0), Ok(None));
        assert_eq!(frame_size_bytes(&head), Some(0x1_0000_0007));
        assert_eq!(frame_size_bytes(&head[..6]), None);
    }

    #[test]
    fn a_wrong_end_octet_is_refused() {
        let mut out = Vec::new();
        write_heartbeat(&mut out);
        assert_eq!(out, [8, 0, 0, 0, 0, 0, 0, 0xce]);
        out[7] = 0xcd;
        assert_eq!(read_frame(&out, 4096), Err(FrameError::BadEnd(0xcd)));
    }

    #[test]
    fn errors_are_sentences() {
        let text = FrameError::TooLarge { size_bytes: 200_000, max_bytes: 131_072 }.to_string();
        assert_eq!(
            text,
            "frame of 200000 bytes is larger than the negotiated maximum of 131072 bytes"
        );
        assert_eq!(FrameError::UnknownKind(71).to_string(), "unknown frame type 71");
        assert_eq!(FrameError::BadEnd(0).to_string(), "frame ends with octet 0 instead of 206");
    }
}
