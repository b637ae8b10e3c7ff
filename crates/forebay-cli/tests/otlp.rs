//! The command line's spans, as a collector gets them: OTLP over HTTP, decoded here.

mod support;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use support::broker::{Broker, Start};
use support::dir::Dir;

/// Takes spans.
struct Collector {
    server: Arc<tiny_http::Server>,
    requests: Arc<Mutex<Vec<ExportTraceServiceRequest>>>,
}

impl Collector {
    fn start() -> Collector {
        let server = Arc::new(tiny_http::Server::http("127.0.0.1:0").expect("a free port"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (taking, taken) = (server.clone(), requests.clone());
        thread::spawn(move || {
            for mut request in taking.incoming_requests() {
                assert_eq!(request.url(), "/v1/traces");
                let mut body = Vec::new();
                request.as_reader().read_to_end(&mut body).expect("the whole request");
                let decoded = ExportTraceServiceRequest::decode(&*body).expect("protobuf of OTLP");
                taken.lock().expect("nobody panicked").push(decoded);
                // Who sent it has its own test.
                let _ = request.respond(tiny_http::Response::empty(200));
            }
        });
        Collector { server, requests }
    }

    fn endpoint(&self) -> String {
        format!("http://{}", self.server.server_addr().to_ip().expect("a socket of TCP"))
    }

    /// By service, in the order in which they came. Commands that have ended have sent all.
    fn spans(&self) -> Vec<(String, Span)> {
        let requests = self.requests.lock().expect("nobody panicked");
        let resources = requests.iter().flat_map(|request| &request.resource_spans);
        let of = resources.flat_map(|it| {
            let attributes = it.resource.as_ref().map_or(&[][..], |it| &it.attributes);
            let service = said(attributes, "service.name");
            let spans = it.scope_spans.iter().flat_map(|scope| scope.spans.clone());
            spans.map(move |span| (service.clone(), span))
        });
        of.collect()
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.server.unblock();
    }
}

fn said(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|it| it.key == key).and_then(|it| it.value.clone());
    match found {
        Some(AnyValue { value: Some(Value::StringValue(text)) }) => text,
        Some(AnyValue { value: Some(Value::IntValue(number)) }) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `forebay` with these arguments, lines on its standard input, and variables of OpenTelemetry.
fn forebay(url: &str, arguments: &[&str], input: &str, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(support::forebay());
    command.args(arguments).env("FOREBAY_URL", url).envs(variables.iter().copied());
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary was built");
    let mut stdin = child.stdin.take().expect("it is piped");
    // A command that reads nothing may have closed it.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

fn succeeded(ended: &Output) {
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
}

#[test]
fn one_trace_goes_through_publish_pipe_and_its_program_to_a_collector() {
    let home = Dir::new("tracing-through");
    let broker: Broker = Start::in_memory(home.path()).ready();
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let trace = "0af7651916cd43dd8448eb211c80319c";
    let parent = format!("00-{trace}-b7ad6b7169203331-01");
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint),
        ("OTEL_SERVICE_NAME", "shop"),
        ("TRACEPARENT", &*parent),
    ];
    let url = broker.url();
    let publish = ["publish", "--queue", "orders"];
    succeeded(&forebay(&url, &publish, "one\ntwo\nthree\n", &variables));

    let seen = home.path().join("seen");
    let script = format!("echo $TRACEPARENT >> '{}'", seen.display());
    let pipe = [
        "pipe",
        "--queue",
        "orders",
        "--until-empty",
        "--concurrency",
        "1",
        "--",
        "sh",
        "-c",
        &script,
    ];
    let variables = [("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", &*format!("{endpoint}/v1/traces"))];
    succeeded(&forebay(&url, &pipe, "", &variables));

    let spans = collector.spans();
    assert_eq!(spans.len(), 6, "{spans:#?}");
    assert!(spans.iter().all(|(_, span)| hex(&span.trace_id) == trace), "it is one trace");
    let of = |service: &str, kind: SpanKind| -> HashMap<String, &Span> {
        let found = spans.iter().filter(|(from, span)| from == service && span.kind == kind as i32);
        found.map(|(_, span)| (said(&span.attributes, "messaging.message.id"), span)).collect()
    };
    let (published, processed) =
        (of("shop", SpanKind::Producer), of("forebay", SpanKind::Consumer));
    assert_eq!((published.len(), processed.len()), (3, 3), "and each message has its own id");
    for (id, span) in &processed {
        let before = published.get(id).unwrap_or_else(|| panic!("{id} of {:?}", published.keys()));
        assert_eq!(before.name, "publish orders");
        assert_eq!(hex(&before.parent_span_id), "b7ad6b7169203331");
        assert_eq!(span.name, "process orders");
        assert_eq!(span.parent_span_id, before.span_id);
        assert_eq!(span.links[0].span_id, before.span_id);
        assert_eq!(said(&span.attributes, "messaging.system"), "rabbitmq");
        assert_eq!(said(&span.attributes, "messaging.destination.name"), "orders");
    }
    let seen = fs::read_to_string(seen).expect("programs wrote it");
    let seen: HashSet<&str> = seen.lines().collect();
    let told = |span: &&Span| format!("00-{trace}-{}-01", hex(&span.span_id));
    let told: Vec<String> = processed.values().map(told).collect();
    assert_eq!(seen, told.iter().map(String::as_str).collect(), "a program goes on with its span");
}

#[test]
fn consume_tells_what_it_received_and_programs_that_fail_are_told() {
    let home = Dir::new("tracing-failing");
    let broker = Start::in_memory(home.path()).ready();
    let collector = Collector::start();
    let endpoint = collector.endpoint();
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", &*endpoint)];
    let url = broker.url();
    succeeded(&forebay(&url, &["publish", "--queue", "q"], "x\n", &variables));
    let pipe =
        ["pipe", "--queue", "q", "--until-empty", "--retries", "0", "--on-failure", "reject"];
    let pipe = [&pipe[..], &["--", "false"]].concat();
    succeeded(&forebay(&url, &pipe, "", &variables));
    succeeded(&forebay(&url, &["publish", "--queue", "q"], "y\n", &variables));
    let consume = ["consume", "--queue", "q", "--until-empty"];
    succeeded(&forebay(&url, &consume, "", &variables));

    let spans = collector.spans();
    let named = |name: &str| -> Vec<&Span> {
        spans.iter().map(|(_, span)| span).filter(|span| span.name == name).collect()
    };
    let (published, processed) = (named("publish q"), named("process q"));
    assert_eq!((published.len(), processed.len()), (2, 1));
    assert_eq!(said(&processed[0].attributes, "error.type"), "_OTHER");
    let status = processed[0].status.as_ref().expect("it failed");
    assert!(status.message.contains("exit code 1"), "{}", status.message);
    let received = named("receive q");
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].kind, SpanKind::Client as i32);
    assert_eq!(received[0].links[0].span_id, published[1].span_id);
    assert_ne!(published[0].trace_id, published[1].trace_id);
}

#[test]
fn a_collector_that_is_not_there_stops_nothing_and_is_told() {
    let home = Dir::new("tracing-alone");
    let broker = Start::in_memory(home.path()).ready();
    let url = broker.url();
    // A port on which nobody listens any more.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let gone = format!("http://{}", gone.local_addr().expect("it is bound"));
    let stderr = |variables: &[(&str, &str)]| {
        let ended = forebay(&url, &["publish", "--queue", "q"], "x\n", variables);
        succeeded(&ended);
        String::from_utf8_lossy(&ended.stderr).into_owned()
    };
    let said = stderr(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &gone)]);
    assert!(said.contains("1 of 1 spans were not sent"), "{said}");
    let grpc = ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc");
    let said = stderr(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &gone), grpc]);
    assert!(said.contains("nothing is traced") && said.contains("http/protobuf"), "{said}");
    let said = stderr(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &gone), ("OTEL_SDK_DISABLED", "true")]);
    assert!(!said.contains("span") && !said.contains("traced"), "{said}");
}
