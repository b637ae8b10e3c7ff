//! A cursor over borrowed bytes that knows AMQP's elementary domains (clause 4.2.5).
//!
//! `None` always means the same: the bytes end before the value does.

use crate::ShortStr;

#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    pub(crate) rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Self { rest: input }
    }

    #[inline]
    pub(crate) fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken)
    }

    #[inline]
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    #[inline]
    pub(crate) fn octet(&mut self) -> Option<u8> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn short(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn long(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn longlong(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    #[inline]
    pub(crate) fn shortstr(&mut self) -> Option<ShortStr<'a>> {
        let length = self.octet()?;
        self.take(length.into()).map(ShortStr::counted)
    }

    #[inline]
    pub(crate) fn longstr(&mut self) -> Option<&'a [u8]> {
        let length = self.long()?;
        self.take(length as usize)
    }
}
