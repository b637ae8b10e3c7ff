//! Closing, at moments that only this crate can choose.

use std::time::Duration;

use tokio::time::timeout;

use crate::Lost;
use crate::pool::tests::{broker, connect, declare};

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_close_that_is_dropped_ends_the_socket_for_consuming_whoever_has_it_locked() {
    let broker = broker();
    let connection = connect(&broker).await;
    declare(&connection, &["q".to_owned()]).await;
    let consumer = connection.consumer("q").build().await.unwrap();
    let shared = connection.shared.clone();
    let locked = shared.consuming.lock().await;
    let guard = locked.clone().expect("a socket for the consumer");
    let closed = timeout(Duration::ZERO, connection.close()).await;
    assert!(closed.is_err(), "it waits: {closed:?}");
    drop(locked);
    let over = async {
        loop {
            match guard.link.with(|session| session.over().cloned()) {
                Some(lost) => break lost,
                None => tokio::task::yield_now().await,
            }
        }
    };
    assert_eq!(timeout(PATIENCE, over).await.expect("it ends"), Lost::ClosedByUs);
    drop(consumer);
}
