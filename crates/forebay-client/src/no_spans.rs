//! Without the feature `opentelemetry` there are no spans: of these types there are no values.

use forebay_wire::TableBuf;

use crate::message::Message;
use crate::outcome::{NotPublishedReason, Unconfirmed};
use crate::received::Received;
use crate::session::Target;

#[derive(Debug)]
pub(crate) enum Spans {}

impl Spans {
    pub(crate) fn publish(&self, _: &Target, _: &mut Message) {
        match *self {}
    }

    pub(crate) fn received(&self, _: &str, _: &Received) {
        match *self {}
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum PublishSpan {}

impl PublishSpan {
    pub(crate) fn headers(&self) -> Option<&TableBuf> {
        match *self {}
    }

    pub(crate) fn concluded(&self, _: &str, _: Option<&Unconfirmed>) {
        match *self {}
    }

    pub(crate) fn refused(&self, _: &NotPublishedReason) {
        match *self {}
    }
}
