//! What a case runs on.

use forebay::{Broker, Connection, Options, Queue};
use forebay_wire::AmqpUri;

/// One broker, however it is reached.
pub(crate) struct Engine {
    /// `None`: it is embedded.
    uri: Option<String>,
    embedded: Option<Broker>,
    quorum: bool,
}

/// Why a case failed; any error is one.
pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

impl Engine {
    pub(crate) fn new(uri: Option<String>, quorum: bool) -> Result<Engine, String> {
        let embedded = match uri {
            Some(_) => None,
            None => Some(Broker::in_memory().map_err(|error| error.to_string())?),
        };
        Ok(Engine { uri, embedded, quorum })
    }

    pub(crate) async fn connect(&self) -> Result<Connection, Failure> {
        Ok(match (&self.uri, &self.embedded) {
            (Some(uri), _) => Connection::open(uri).await?,
            (None, Some(broker)) => broker.connect().await?,
            (None, None) => unreachable!("one of them was made"),
        })
    }

    /// Where it listens, and how to log in there.
    pub(crate) fn listening(&self) -> Result<((String, u16), Options), Failure> {
        match (&self.uri, &self.embedded) {
            (Some(uri), _) => {
                let uri: AmqpUri = uri.parse()?;
                Ok(((uri.host.clone(), uri.port), Options::from_uri(&uri)))
            }
            (None, Some(broker)) => {
                let address = broker.listen("127.0.0.1:0")?;
                Ok(((address.ip().to_string(), address.port()), Options::default()))
            }
            (None, None) => unreachable!("one of them was made"),
        }
    }

    /// A durable queue of the kind that is tried.
    pub(crate) fn queue(&self, name: &str) -> Queue {
        if self.quorum { Queue::quorum(name) } else { Queue::durable(name) }
    }
}
