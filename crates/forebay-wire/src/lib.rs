//! AMQP 0-9-1 on the wire: bytes to frames, methods, tables and back.
//!
//! The codec knows no sockets, no clock and no connection state. It borrows: what it returns points
//! into the bytes it was given, so reading a publish allocates nothing. *Incomplete* is an ordinary
//! answer of [`read_frame`], kept apart from what a whole frame says ([`Method::parse`],
//! [`ContentHeader::parse`]).
//!
//! Clause numbers (`4.2.3`, `1.8.3.7`) refer to the AMQP 0-9-1 specification: 2 to 4 to the protocol
//! document, 1.x to its class reference. Extensions are RabbitMQ's and are marked as such.
//!
//! ```
//! use forebay_wire::{Method, ShortStr, basic, read_frame, write_method};
//!
//! let mut out = Vec::new();
//! let publish = basic::Publish { routing_key: ShortStr::truncated("jobs"), ..Default::default() };
//! write_method(&mut out, 1, &publish);
//!
//! let frame = read_frame(&out, 131_072).unwrap().expect("a whole frame");
//! assert_eq!(Method::parse(frame.payload), Ok(Method::BasicPublish(publish)));
//! ```

mod array;
mod frame;
mod method;
mod properties;
mod protocol_header;
mod reader;
mod reply_code;
mod short_str;
mod table;
mod uri;
mod value;

pub use array::{Array, ArrayBuf};
pub use frame::{
    FRAME_END, FRAME_HEAD_BYTES, FRAME_MIN_SIZE_BYTES, FRAME_OVERHEAD_BYTES, Frame, FrameError,
    FrameKind, frame_size_bytes, read_frame, write_body_frame, write_heartbeat,
};
pub use method::{
    Method, MethodError, WireMethod, access, basic, channel, confirm, connection, exchange,
    forebay, method_ids, queue, tx, write_method,
};
pub use properties::{
    ContentHeader, Properties, RawProperties, write_header_frame, write_properties_frame,
};
pub use protocol_header::{PROTOCOL_HEADER, WrongProtocol, read_protocol_header};
pub use reply_code::{ReplyCode, Scope};
pub use short_str::ShortStr;
pub use table::{TABLE_DEPTH_MAX, Table, TableBuf, TableError};
pub use uri::{AmqpUri, UriError};
pub use value::Value;
