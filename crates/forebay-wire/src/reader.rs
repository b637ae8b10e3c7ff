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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_in_network_order_and_consumed() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(reader.octet(), Some(1));
        assert_eq!(reader.short(), Some(0x0203));
        assert_eq!(reader.long(), Some(0x0405_0607));
        assert_eq!(reader.longlong(), Some(0x0809_0a0b_0c0d_0e0f));
        assert_eq!(reader.octet(), None);
    }

    #[test]
    fn a_string_longer_than_the_input_is_none() {
        assert_eq!(Reader::new(b"\x03ab").shortstr(), None);
        assert_eq!(Reader::new(b"\xff\xff\xff\xffab").longstr(), None);
        assert_eq!(Reader::new(b"\0\0\0").longstr(), None);
        let mut reader = Reader::new(b"\x02abc");
        assert_eq!(reader.shortstr(), ShortStr::new(b"ab"));
        assert_eq!(reader.rest, b"c");
    }
}
