//! What is said of a connection that is lost and comes back.

use forebay_client::{Connection, Happening};
use tokio::sync::broadcast::Receiver;

/// What happened to a connection and was not told yet.
pub(crate) struct Happenings(Receiver<Happening>);

impl Happenings {
    pub(crate) fn of(connection: &Connection) -> Happenings {
        Happenings(connection.happenings())
    }

    /// The next sentence, if there is one; of more than the connection keeps some are skipped.
    pub(crate) fn next(&mut self) -> Option<String> {
        use tokio::sync::broadcast::error::TryRecvError;
        loop {
            match self.0.try_recv() {
                Ok(happening) => {
                    if let Some(sentence) = sentence(&happening) {
                        return Some(sentence);
                    }
                }
                Err(TryRecvError::Lagged(_)) => {}
                Err(TryRecvError::Empty | TryRecvError::Closed) => return None,
            }
        }
    }
}

fn sentence(happening: &Happening) -> Option<String> {
    match happening {
        Happening::Lost { lost } => Some(format!("{lost}; trying again")),
        Happening::Connected { address, reconnects } if *reconnects > 0 => {
            Some(format!("connected again, to {address}"))
        }
        _ => None,
    }
}
