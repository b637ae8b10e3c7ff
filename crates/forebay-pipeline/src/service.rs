//! Handlers that are `tower` services, with what others have written for them: timeouts, limits, load shedding, filters.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};

use tower_service::Service;

use crate::handler::{Failure, Handler, catching};
use crate::item::Item;
use crate::outcome::Handled;

/// A handler that calls a service. Made by [`Pipeline::process_service`](crate::Pipeline::process_service).
pub struct Called<S>(Mutex<S>);

impl<S> Called<S> {
    pub(crate) fn new(service: S) -> Called<S> {
        Called(Mutex::new(service))
    }
}

impl<S> fmt::Debug for Called<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Called").finish_non_exhaustive()
    }
}

impl<T, S> Handler<T> for Called<S>
where
    T: Send + Sync + 'static,
    S: Service<Item<T>> + Clone + Send + 'static,
    S::Response: Handled + Send,
    S::Error: fmt::Display + Send,
    S::Future: Send,
{
    type Output = S::Response;

    async fn handle(&self, item: Item<T>) -> Result<S::Response, Failure> {
        let called = catching(async move {
            // A service of its own for each message: one that waits to be ready must not keep the others waiting.
            let mut service = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
            let called = async {
                poll_fn(|cx| service.poll_ready(cx)).await?;
                service.call(item).await
            };
            // An error tells what it is in code of its own.
            called.await.map_err(|error: S::Error| error.to_string())
        });
        called.await?.map_err(Failure::Error)
    }
}
