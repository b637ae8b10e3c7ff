//! The messages of one consumer on a channel.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use forebay_wire::{ShortStr, basic};

use crate::channel::{Channel, Inner};
use crate::error::ChannelFault;
use crate::received::Received;
use crate::session::UserChannel;

/// The messages of one consumer on a channel. Acknowledge them on the channel.
///
/// Dropping it cancels the consumer; what had been delivered goes back when the channel closes.
pub struct Deliveries {
    pub(crate) inner: Arc<Inner>,
    pub(crate) tag: String,
    /// Tells it from those that had the tag before.
    pub(crate) subscription: u64,
}

impl Deliveries {
    /// The consumer's tag.
    pub fn tag(&self) -> &str {
        &self.tag
    }

    /// The next message; `None` after the consumer was cancelled, by either side.
    ///
    /// # Cancellation
    /// A dropped future has taken nothing.
    pub async fn next(&mut self) -> Result<Option<Received>, ChannelFault> {
        let (link, key) = (&self.inner.guard.link, self.inner.key);
        poll_fn(|cx| {
            link.with(|session| {
                let polled = session.user(key).0.poll_delivery(&self.tag, self.subscription, cx);
                if let Poll::Ready(Ok(Some(message))) = &polled {
                    session.taken(key, message.size_bytes());
                }
                polled
            })
        })
        .await
    }

    /// Ends the consumer, if it has not ended. Messages that had arrived can still be taken.
    ///
    /// # Cancellation
    /// A dropped future has ended it as soon as the broker agrees.
    pub async fn cancel(&mut self) -> Result<(), ChannelFault> {
        let (link, key) = (&self.inner.guard.link, self.inner.key);
        let consumes = |user: &mut UserChannel| user.is_consuming(&self.tag, self.subscription);
        if !link.with(|session| consumes(session.user(key).0)) {
            // Another one may have its tag.
            return Ok(());
        }
        let channel = Channel { inner: self.inner.clone() };
        let cancel =
            basic::Cancel { consumer_tag: ShortStr::truncated(&self.tag), ..Default::default() };
        channel.request(&cancel).await.map(drop)
    }
}

impl Drop for Deliveries {
    fn drop(&mut self) {
        let Inner { guard, key, number, .. } = &*self.inner;
        guard.link.with(|session| {
            session.end_subscription(*key, *number, &self.tag, self.subscription);
        });
    }
}

impl fmt::Debug for Deliveries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deliveries").field("tag", &self.tag).finish_non_exhaustive()
    }
}
