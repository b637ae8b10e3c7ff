//! A message's content on its way to a client: its header, and its body in frames (0-9-1 section 4.2.6).
//!
//! A body is copied into frames as its client reads, a piece at a time. Until then what is left of it is the message itself, which
//! counts in the memory budget like one in a queue, however many clients do not read and however large it is.
//!
//! ```text
//!   deliver, header, first piece │ rest of the body: the message │ what came later
//!   └───── bytes to write ───────┘ ── a piece ──►
//! ```

use std::sync::Arc;

use forebay_wire::{
    FRAME_OVERHEAD_BYTES, RawProperties, write_body_frame, write_header_frame, write_method,
};

use crate::message::Message;
use crate::topology::QueueKey;

/// Class of `basic`.
const BASIC: u16 = 60;

/// A piece is of whole frames, and not larger than this, in bytes: frames of clients that ask for no other size are as large.
const PIECE_MAX_BYTES: usize = 128 * 1024;

/// How content goes to a channel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    channel: u16,
    /// Body bytes in a frame.
    frame_body_bytes: usize,
    /// Bytes of frames in a piece.
    piece_bytes: usize,
}

impl Way {
    /// `frame_max_bytes`: as negotiated, 0 is no limit. A connection may have `soft_bytes` outgoing: pieces are no larger.
    #[inline]
    pub(crate) fn new(channel: u16, frame_max_bytes: u32, soft_bytes: usize) -> Way {
        let piece_bytes = soft_bytes.min(PIECE_MAX_BYTES);
        let frame_bytes = match frame_max_bytes {
            0 => piece_bytes,
            max => piece_bytes.min(max as usize),
        };
        Way { channel, frame_body_bytes: frame_bytes - FRAME_OVERHEAD_BYTES, piece_bytes }
    }

    /// Writes method, header and the first piece of the body; the rest of it, if there is more, is for the caller to send.
    #[inline]
    pub(crate) fn write(
        self,
        out: &mut Vec<u8>,
        method: &impl forebay_wire::WireMethod,
        raw: RawProperties<'_>,
        body: &[u8],
    ) -> Option<Rest> {
        write_method(out, self.channel, method);
        write_header_frame(out, self.channel, BASIC, body.len() as u64, raw);
        if body.len() <= self.frame_body_bytes {
            if !body.is_empty() {
                write_body_frame(out, self.channel, body);
            }
            return None;
        }
        let from = self.write_piece(out, body);
        (from < body.len()).then_some(Rest { way: self, from })
    }

    /// As much of a body as fits into a piece; how much that is.
    fn write_piece(self, out: &mut Vec<u8>, body: &[u8]) -> usize {
        let frames = self.piece_bytes / (self.frame_body_bytes + FRAME_OVERHEAD_BYTES);
        let piece = &body[..body.len().min(frames * self.frame_body_bytes)];
        for part in piece.chunks(self.frame_body_bytes) {
            write_body_frame(out, self.channel, part);
        }
        piece.len()
    }
}

/// From where on a body is still to be sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rest {
    way: Way,
    from: usize,
}

impl Rest {
    /// The rest of this message's body.
    pub(crate) fn of(self, message: Arc<Message>, left: Option<(QueueKey, u64)>) -> BodyRest {
        debug_assert!(self.from < message.body().len());
        BodyRest { message, left, rest: self }
    }
}

/// What is not sent yet of a body.
#[derive(Debug)]
pub(crate) struct BodyRest {
    pub(crate) message: Arc<Message>,
    /// The queue, with its durable identity, that knows nothing of it any more: nobody is to acknowledge it.
    pub(crate) left: Option<(QueueKey, u64)>,
    rest: Rest,
}

impl BodyRest {
    /// Bytes that are still to be written, frames included.
    pub(crate) fn len(&self) -> usize {
        let bytes = self.message.body().len() - self.rest.from;
        bytes + bytes.div_ceil(self.rest.way.frame_body_bytes) * FRAME_OVERHEAD_BYTES
    }

    /// Writes the next piece; false if that was the last.
    pub(crate) fn write_piece(&mut self, out: &mut Vec<u8>) -> bool {
        let body = self.message.body();
        self.rest.from += self.rest.way.write_piece(out, &body[self.rest.from..]);
        self.rest.from < body.len()
    }

    /// All that is left, as it will be written.
    pub(crate) fn write_all(&self, out: &mut Vec<u8>) {
        let Rest { way, mut from } = self.rest;
        while from < self.message.body().len() {
            from += way.write_piece(out, &self.message.body()[from..]);
        }
    }
}
