//! Without the feature `otlp` nothing is traced.

use std::convert::Infallible;

use forebay::pipeline::{Handler, Process, QueueSource};
use forebay::{ConsumerBuilder, PublisherBuilder, Received};

pub(crate) struct Tracing;

impl Tracing {
    pub(crate) fn from_env() -> Tracing {
        Tracing
    }

    pub(crate) fn within_parent(&self) -> Option<Infallible> {
        None
    }

    pub(crate) fn publisher(&self, publisher: PublisherBuilder) -> PublisherBuilder {
        publisher
    }

    pub(crate) fn consumer(&self, consumer: ConsumerBuilder) -> ConsumerBuilder {
        consumer
    }

    pub(crate) fn process<H: Handler<Received>>(
        &self,
        process: Process<QueueSource, H>,
        _: &str,
    ) -> Process<QueueSource, H> {
        process
    }
}

pub(crate) fn environment() -> Vec<(String, String)> {
    Vec::new()
}
