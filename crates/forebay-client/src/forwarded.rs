//! The properties of a message that is passed on byte for byte.

use forebay_wire::{Properties, RawProperties, TableBuf, Value};

use crate::message::REPUBLISHED_HEADER;

/// Properties of a message that is passed on, as they came; then none of the others count.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Forwarded {
    pub(crate) raw: Box<[u8]>,
    /// With [`REPUBLISHED_HEADER`].
    pub(crate) marked: bool,
}

impl Forwarded {
    pub(crate) fn encode(&self, out: &mut Vec<u8>, republished: bool) {
        let properties = RawProperties::trusted(&self.raw).parse();
        let headers = properties.headers.map(TableBuf::from).unwrap_or_default();
        let has_mark = headers.as_table().get(REPUBLISHED_HEADER).is_some();
        if has_mark || !(self.marked || republished) {
            return out.extend_from_slice(&self.raw);
        }
        let headers = headers.with(REPUBLISHED_HEADER, Value::Bool(true));
        Properties { headers: Some(headers.as_table()), ..properties }.encode(out);
    }
}
