//! How a pipeline ends.

use std::pin::pin;
use std::time::Duration;

use tokio::time::interval;

/// How soon a signal is noticed.
const SIGNAL_PATIENCE: Duration = Duration::from_millis(50);

/// Waits for its `ending`, which `drain` brings about when a signal `came` or `nothing_left` has an answer to that.
pub(super) async fn ended<T>(
    ending: impl Future<Output = T>,
    mut came: impl FnMut() -> bool,
    mut nothing_left: impl AsyncFnMut() -> bool,
    drain: impl FnOnce(),
) -> T {
    let mut ending = pin!(ending);
    let mut look = interval(SIGNAL_PATIENCE);
    loop {
        tokio::select! {
            ended = &mut ending => return ended,
            // Whether or not a signal has come: one that did while somebody else was asked has not been acted on.
            _ = look.tick() => {}
        }
        if came() || nothing_left().await {
            drain();
            return ending.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use tokio::sync::Notify;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_signal_that_comes_while_somebody_is_asked_is_noticed() {
        let (came, drained) = (Cell::new(false), Notify::new());
        let asked = async || {
            came.set(true);
            false
        };
        let ended = ended(drained.notified(), || came.get(), asked, || drained.notify_one());
        timeout(Duration::from_secs(20), ended).await.expect("it drains");
    }
}
