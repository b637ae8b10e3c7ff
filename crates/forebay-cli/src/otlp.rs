//! Spans of what a command publishes, takes and works on, sent to a collector if the environment asks for it.
//!
//! ```text
//!   spans ──▶ queue (OTEL_BSP_MAX_QUEUE_SIZE, 2048) ──▶ a thread ──POST, protobuf──▶ collector
//! ```
//! A span that finds no room is dropped and counted: the command does not wait for its collector. At the end it does, for
//! [`FLUSH_PATIENCE`] at most. The variables are those of OpenTelemetry; the SDK reads most of them itself.

use std::env;
use std::future::Future;
use std::io::Read;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use forebay::opentelemetry::propagation::TextMapPropagator;
use forebay::opentelemetry::trace::TraceContextExt;
use forebay::opentelemetry::{Context, ContextGuard, KeyValue, global};
use forebay::pipeline::{Handler, Process, QueueSource};
use forebay::{ConsumerBuilder, PublisherBuilder, Received};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{
    BatchSpanProcessor, SdkTracerProvider, Span, SpanData, SpanExporter as Exporter, SpanProcessor,
};
use ureq::Agent;

/// How long the last spans may take to leave.
const FLUSH_PATIENCE: Duration = Duration::from_secs(5);
/// How long a request may take, unless the environment says otherwise.
const REQUEST_PATIENCE_MS: u64 = 10_000;
/// Longest answer that is read, in bytes.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// The tracing of one command. Dropped, it sends what is left and says what could not be sent.
pub(crate) struct Tracing(Option<Export>);

struct Export {
    provider: SdkTracerProvider,
    tally: Arc<Tally>,
}

impl Tracing {
    /// As the environment asks for it; what is wrong there is said on standard error, and nothing is traced.
    pub(crate) fn from_env() -> Tracing {
        let variable = |name: &str| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let export = match asked(&variable) {
            Ok(false) => return Tracing(None),
            Ok(true) => Export::start(&variable),
            Err(sentence) => Err(sentence),
        };
        match export {
            Ok(export) => Tracing(Some(export)),
            Err(sentence) => {
                say!("forebay: nothing is traced: {sentence}");
                Tracing(None)
            }
        }
    }

    /// While this is held, what begins on this thread is part of the trace that `TRACEPARENT` names, if it does.
    #[must_use]
    pub(crate) fn within_parent(&self) -> Option<ContextGuard> {
        self.0.as_ref()?;
        let said = |name: &str| Some((name.to_ascii_lowercase(), env::var(name).ok()?));
        let carrier = ["TRACEPARENT", "TRACESTATE"].into_iter().filter_map(said);
        let carrier: std::collections::HashMap<String, String> = carrier.collect();
        Some(TraceContextPropagator::new().extract(&carrier).attach())
    }

    pub(crate) fn publisher(&self, publisher: PublisherBuilder) -> PublisherBuilder {
        if self.0.is_some() { publisher.opentelemetry() } else { publisher }
    }

    pub(crate) fn consumer(&self, consumer: ConsumerBuilder) -> ConsumerBuilder {
        if self.0.is_some() { consumer.opentelemetry() } else { consumer }
    }

    pub(crate) fn process<H: Handler<Received>>(
        &self,
        process: Process<QueueSource, H>,
        queue: &str,
    ) -> Process<QueueSource, H> {
        if self.0.is_none() {
            return process;
        }
        let queue = queue.to_owned();
        process.opentelemetry(move |message: &Received| message.process_span(&queue))
    }
}

/// What tells a program the span that it is part of: `TRACEPARENT` and `TRACESTATE`.
pub(crate) fn environment() -> Vec<(String, String)> {
    let current = Context::current();
    if !current.span().span_context().is_valid() {
        return Vec::new();
    }
    let mut said = std::collections::HashMap::new();
    TraceContextPropagator::new().inject_context(&current, &mut said);
    said.into_iter().map(|(name, value)| (name.to_ascii_uppercase(), value)).collect()
}

type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

/// Of two variables, the one for traces comes first.
fn otlp(variable: Variable<'_>, what: &str) -> Option<String> {
    let traces = variable(&format!("OTEL_EXPORTER_OTLP_TRACES_{what}"));
    traces.or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{what}")))
}

/// Whether spans are wanted, and sent in a way that there is here.
fn asked(variable: Variable<'_>) -> Result<bool, String> {
    let disabled = variable("OTEL_SDK_DISABLED").is_some_and(|it| it.eq_ignore_ascii_case("true"));
    let exporters = variable("OTEL_TRACES_EXPORTER");
    let endpoint = otlp(variable, "ENDPOINT");
    let wanted = match &exporters {
        Some(exporters) => exporters.split(',').any(|exporter| exporter.trim() == "otlp"),
        None => endpoint.is_some(),
    };
    if disabled || !wanted {
        return Ok(false);
    }
    match otlp(variable, "PROTOCOL").as_deref() {
        None | Some("http/protobuf") => {}
        Some(other) => {
            return Err(format!(
                "OTEL_EXPORTER_OTLP_PROTOCOL is '{other}', and spans are sent by 'http/protobuf' only, \
                 which collectors take at port 4318"
            ));
        }
    }
    match otlp(variable, "COMPRESSION").as_deref() {
        None | Some("none") => {}
        Some(other) => {
            return Err(format!(
                "OTEL_EXPORTER_OTLP_COMPRESSION is '{other}', and nothing is compressed here; leave it out"
            ));
        }
    }
    match endpoint {
        Some(endpoint) if !endpoint.starts_with("http://") => Err(format!(
            "the endpoint '{}' does not begin with http://, and this version speaks plain HTTP only; \
             name a collector near by, which passes spans on",
            without_login(&endpoint)
        )),
        _ => Ok(true),
    }
}

fn without_login(url: &str) -> String {
    url.rsplit_once('@').map_or_else(|| url.to_owned(), |(_, place)| format!("…{place}"))
}

impl Export {
    fn start(variable: Variable<'_>) -> Result<Export, String> {
        let patience_ms = otlp(variable, "TIMEOUT").and_then(|ms| ms.trim().parse().ok());
        let tally = Arc::new(Tally::default());
        let patience_ms = patience_ms.unwrap_or(REQUEST_PATIENCE_MS);
        let client = Client { patience_ms, tally: tally.clone() };
        let exporter = SpanExporter::builder().with_http().with_http_client(client);
        let exporter = exporter.build().map_err(|error| error.to_string())?;
        let counted = Counted { exporter, tally: tally.clone() };
        let processor = BatchSpanProcessor::builder(counted).build();
        // The environment's attributes, and our name where it gives none.
        let resource = Resource::builder();
        let named = variable("OTEL_SERVICE_NAME").is_some()
            || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|it| it.contains("service.name="));
        let resource = if named { resource } else { resource.with_service_name("forebay") };
        let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let provider = SdkTracerProvider::builder()
            .with_span_processor(Counting { processor, tally: tally.clone() })
            .with_resource(resource.with_attribute(version).build())
            .build();
        global::set_tracer_provider(provider.clone());
        global::set_text_map_propagator(TraceContextPropagator::new());
        Ok(Export { provider, tally })
    }
}

impl Drop for Export {
    fn drop(&mut self) {
        let ended = self.provider.shutdown_with_timeout(FLUSH_PATIENCE);
        let (made, sent) = (&self.tally.made, &self.tally.sent);
        let (made, sent) = (made.load(Ordering::Relaxed), sent.load(Ordering::Relaxed));
        if sent >= made {
            return;
        }
        let failure = self.tally.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        let why = failure.or_else(|| ended.err().map(|error| error.to_string())).unwrap_or_else(|| {
            "there was no room for them; OTEL_BSP_MAX_QUEUE_SIZE gives more, OTEL_TRACES_SAMPLER makes fewer"
                .into()
        });
        say!("forebay: {} of {made} spans were not sent: {why}", made - sent);
    }
}

/// What became of spans.
#[derive(Debug, Default)]
struct Tally {
    made: AtomicU64,
    sent: AtomicU64,
    /// The first one.
    failure: Mutex<Option<String>>,
}

impl Tally {
    fn failed(&self, why: String) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(why);
    }
}

/// Counts what is made.
#[derive(Debug)]
struct Counting {
    processor: BatchSpanProcessor,
    tally: Arc<Tally>,
}

impl SpanProcessor for Counting {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.processor.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.tally.made.fetch_add(1, Ordering::Relaxed);
        }
        self.processor.on_end(span);
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.processor.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.processor.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.processor.set_resource(resource);
    }
}

/// Counts what is sent.
#[derive(Debug)]
struct Counted {
    exporter: SpanExporter,
    tally: Arc<Tally>,
}

impl Exporter for Counted {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len() as u64;
        let exported = self.exporter.export(batch).await;
        match &exported {
            Ok(()) => {
                self.tally.sent.fetch_add(spans, Ordering::Relaxed);
            }
            Err(error) => self.tally.failed(error.to_string()),
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.exporter.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.exporter.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// HTTP for the exporter, which has a thread of its own to wait in.
#[derive(Debug)]
struct Client {
    patience_ms: u64,
    tally: Arc<Tally>,
}

impl Client {
    fn send(&self, request: &Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let patience = Duration::from_millis(self.patience_ms.max(1));
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .timeout_global(Some(patience));
        let agent: Agent = config.build().into();
        let mut post = agent.post(request.uri()).header("Connection", "close");
        for (name, value) in request.headers() {
            post = post.header(name, value);
        }
        let answer = post.send(&request.body()[..])?;
        let mut response = Response::builder().status(answer.status());
        // The exporter tries again when it is told to.
        if let Some(after) = answer.headers().get("retry-after") {
            response = response.header("retry-after", after);
        }
        let mut body = Vec::new();
        answer.into_body().into_reader().take(ANSWER_BYTES_MAX).read_to_end(&mut body)?;
        Ok(response.body(body.into())?)
    }
}

impl HttpClient for Client {
    fn send_bytes<'c, 'f>(
        &'c self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'f>>
    where
        'c: 'f,
        Self: 'f,
    {
        Box::pin(async move {
            self.send(&request).inspect_err(|error| {
                let place = without_login(&request.uri().to_string());
                self.tally.failed(format!("cannot reach {place}: {error}"));
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked_by(variables: &[(&str, &str)]) -> Result<bool, String> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        asked(&|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn spans_are_made_for_who_names_a_collector() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");
        assert_eq!(asked_by(&[]), Ok(false));
        assert_eq!(asked_by(&[endpoint]), Ok(true));
        assert_eq!(asked_by(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://h/x")]), Ok(true));
        assert_eq!(asked_by(&[("OTEL_TRACES_EXPORTER", "console,otlp")]), Ok(true));
        assert_eq!(asked_by(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]), Ok(false));
        assert_eq!(asked_by(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]), Ok(false));
    }

    #[test]
    fn what_is_not_spoken_here_is_refused_with_what_to_do() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
        let grpc = asked_by(&[endpoint, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).unwrap_err();
        assert!(grpc.contains("'grpc'") && grpc.contains("http/protobuf"), "{grpc}");
        let zipped = ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
        assert!(asked_by(&[endpoint, zipped]).unwrap_err().contains("gzip"));
        let secret = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:secret@far:4318");
        let https = asked_by(&[secret]).unwrap_err();
        assert!(https.contains("far:4318") && !https.contains("secret"), "{https}");
    }
}
