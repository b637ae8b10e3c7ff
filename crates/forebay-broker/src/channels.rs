//! The channels of a connection, by their numbers.
//!
//! Clients count from 1, and every frame asks for its channel: low numbers are places in a table. A number may be any up to
//! 65 535, though, and one channel with such a number is to take the memory of one.

use std::collections::BTreeMap;

use crate::channel::Channel;

/// Numbers below this one are places in a table.
const TABLE_MAX: u16 = 256;

/// Those that are open or closing.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    /// Grows with the highest number opened.
    low: Vec<Option<Box<Channel>>>,
    /// Never `None`.
    high: BTreeMap<u16, Option<Box<Channel>>>,
}

impl Channels {
    pub(crate) fn get(&self, number: u16) -> Option<&Channel> {
        match self.low.get(usize::from(number)) {
            Some(slot) => slot.as_deref(),
            None => self.high.get(&number)?.as_deref(),
        }
    }

    pub(crate) fn get_mut(&mut self, number: u16) -> Option<&mut Channel> {
        match self.low.get_mut(usize::from(number)) {
            Some(slot) => slot.as_deref_mut(),
            None => self.high.get_mut(&number)?.as_deref_mut(),
        }
    }

    /// A number that nobody has gets a channel.
    pub(crate) fn insert(&mut self, number: u16, channel: Channel) {
        debug_assert!(self.get(number).is_none(), "a channel would be forgotten");
        let channel = Some(Box::new(channel));
        if number >= TABLE_MAX {
            self.high.insert(number, channel);
            return;
        }
        let index = usize::from(number);
        if self.low.len() <= index {
            self.low.resize_with(index + 1, || None);
        }
        self.low[index] = channel;
    }

    pub(crate) fn take(&mut self, number: u16) -> Option<Box<Channel>> {
        match self.low.get_mut(usize::from(number)) {
            Some(slot) => slot.take(),
            None => self.high.remove(&number)?,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.low.iter().chain(self.high.values()).filter_map(|slot| slot.as_deref())
    }

    /// Each with its number, in their order.
    pub(crate) fn numbered_mut(&mut self) -> impl Iterator<Item = (u16, &mut Channel)> {
        let low = (0..TABLE_MAX).zip(&mut self.low);
        let high = self.high.iter_mut().map(|(number, slot)| (*number, slot));
        low.chain(high).filter_map(|(number, slot)| Some((number, slot.as_deref_mut()?)))
    }

    pub(crate) fn numbers(&mut self) -> Vec<u16> {
        self.numbered_mut().map(|(number, _)| number).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_channel_is_found_by_any_number_until_it_is_taken() {
        let mut channels = Channels::default();
        let numbers = [1, 7, TABLE_MAX - 1, TABLE_MAX, 2_047, u16::MAX];
        for number in numbers.into_iter().rev() {
            channels.insert(number, Channel::new(number.into()));
        }
        assert_eq!(channels.numbers(), numbers);
        let serials: Vec<u64> = channels.iter().map(|channel| channel.serial).collect();
        assert_eq!(serials, numbers.map(u64::from));
        assert_eq!(channels.numbered_mut().count(), numbers.len());
        for number in numbers {
            assert_eq!(channels.get(number).map(|c| c.serial), Some(number.into()));
            assert_eq!(channels.get_mut(number).map(|c| c.serial), Some(number.into()));
            assert!(channels.get(number - 1).is_none() || numbers.contains(&(number - 1)));
            assert_eq!(channels.take(number).map(|c| c.serial), Some(number.into()));
            assert!(channels.get(number).is_none() && channels.take(number).is_none());
        }
        assert_eq!(channels.numbers(), [0; 0]);
    }

    #[test]
    fn one_with_the_highest_number_takes_no_room_for_all_below_it() {
        let mut channels = Channels::default();
        channels.insert(u16::MAX, Channel::new(1));
        assert_eq!((channels.low.capacity(), channels.numbered_mut().count()), (0, 1));
    }
}
