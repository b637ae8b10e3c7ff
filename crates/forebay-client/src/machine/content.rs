//! A message that arrives in several frames (clause 4.2.6).
//!
//! ```text
//!             deliver, get-ok,               header                  last body byte
//!   Idle ────── return ──────▶ WantsHeader ──────────▶ WantsBody ───────────────────▶ Idle
//! ```
//! This is the path of messages that the receive buffer holds in part only; the whole ones are read
//! in place (see `Machine::whole_content`). The buffers are kept and used again. Their bound is
//! `Options::message_bytes_max`; memory follows the bytes that came, not the announced size.

use forebay_wire::ContentHeader;

/// Capacity kept for the next message; a larger body's memory is given back.
const KEPT_BODY_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    WantsHeader,
    WantsBody,
}

/// The message under way on one channel.
#[derive(Debug, Default)]
pub(super) struct Content {
    phase: Phase,
    /// Payload of the method frame.
    pub(super) method: Vec<u8>,
    /// Property flags and list.
    pub(super) properties: Vec<u8>,
    /// body.len() ≤ size_bytes
    pub(super) body: Vec<u8>,
    size_bytes: u64,
}

impl Content {
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// A method came that has content.
    pub(super) fn begin(&mut self, method_payload: &[u8]) {
        self.method.clear();
        self.method.extend_from_slice(method_payload);
        self.body.clear();
        self.body.shrink_to(KEPT_BODY_BYTES_MAX);
        self.phase = Phase::WantsHeader;
    }

    /// The header came. `Ok(true)`: the body is empty, so the message is complete.
    pub(super) fn header(&mut self, header: &ContentHeader<'_>) -> Result<bool, &'static str> {
        if self.phase != Phase::WantsHeader {
            return Err("a content header where none belongs");
        }
        self.properties.clear();
        self.properties.extend_from_slice(header.properties.raw());
        self.size_bytes = header.body_size_bytes;
        self.phase = if self.size_bytes == 0 { Phase::Idle } else { Phase::WantsBody };
        Ok(self.is_idle())
    }

    /// A body frame came. `Ok(true)`: the message is complete.
    pub(super) fn body(&mut self, payload: &[u8]) -> Result<bool, &'static str> {
        if self.phase != Phase::WantsBody {
            return Err("a content body where none belongs");
        }
        if payload.len() as u64 > self.size_bytes - self.body.len() as u64 {
            return Err("a content body longer than announced");
        }
        self.body.extend_from_slice(payload);
        if self.body.len() as u64 == self.size_bytes {
            self.phase = Phase::Idle;
        }
        Ok(self.is_idle())
    }
}
