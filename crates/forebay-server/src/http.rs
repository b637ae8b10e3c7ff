//! The HTTP endpoint: metrics, health, what goes on and definitions, on a thread of its own.

use crate::mailbox::Snapshot;
use crate::management::{self, Over};
use crate::metrics;
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use tiny_http::{Header, Method, Request, Response};

/// A served endpoint; dropping it ends it.
pub(crate) struct HttpEndpoint {
    server: Arc<tiny_http::Server>,
    thread: Option<JoinHandle<()>>,
}

impl HttpEndpoint {
    /// Serves `listener`; `status` asks the shard and may take its time.
    pub(crate) fn start(
        listener: TcpListener,
        management: Arc<Over>,
        status: impl Fn() -> Option<Snapshot> + Send + 'static,
    ) -> io::Result<HttpEndpoint> {
        listener.set_nonblocking(false)?;
        let server =
            Arc::new(tiny_http::Server::from_listener(listener, None).map_err(io::Error::other)?);
        let serving = server.clone();
        let thread =
            std::thread::Builder::new().name("forebay-http".to_owned()).spawn(move || {
                for request in serving.incoming_requests() {
                    if management::is_for(request.url()) {
                        management::answer(&management, request);
                    } else {
                        answer(request, &status);
                    }
                }
            })?;
        Ok(HttpEndpoint { server, thread: Some(thread) })
    }
}

impl Drop for HttpEndpoint {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // A panic there has cost nothing but the endpoint.
            let _ = thread.join();
        }
    }
}

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

const FRONT_PAGE: &str = "<!doctype html>
<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Forebay</title></head>
<body>
<h1>Forebay</h1>
<p>A message broker that speaks AMQP 0-9-1. This is its HTTP endpoint.</p>
<ul>
<li><a href=\"/metrics\">/metrics</a>: counters and gauges for Prometheus</li>
<li><a href=\"/healthz\">/healthz</a>: 200 while the broker answers, 503 otherwise</li>
<li><a href=\"/api/forebay/overview\">/api/forebay/overview</a>: what goes on and who waits for whom, as JSON; for monitoring</li>
<li><a href=\"/api/definitions\">/api/definitions</a>: what is declared, as RabbitMQ writes it; for administrators</li>
</ul>
</body></html>
";

fn answer(request: Request, status: &impl Fn() -> Option<Snapshot>) {
    let path = request.url().split('?').next().unwrap_or_default();
    let known = matches!(path, "/" | "/metrics" | "/healthz");
    let allowed = matches!(request.method(), Method::Get | Method::Head);
    let (code, content_type, body) = match (path, allowed) {
        (_, false) if known => (405, TEXT, "only GET and HEAD are answered here\n".to_owned()),
        ("/", _) => (200, HTML, FRONT_PAGE.to_owned()),
        ("/metrics", _) => match status() {
            Some(snapshot) => (200, PROMETHEUS, metrics::text(&snapshot)),
            None => (503, TEXT, "the broker does not answer\n".to_owned()),
        },
        ("/healthz", _) => match status() {
            Some(_) => (200, TEXT, "ok\n".to_owned()),
            None => (503, TEXT, "the broker does not answer\n".to_owned()),
        },
        _ => (
            404,
            TEXT,
            "there is /metrics, /healthz, /api/forebay/overview, /api/queues/VHOST/NAME and /api/definitions\n".to_owned(),
        ),
    };
    let mut response = Response::from_string(body).with_status_code(code);
    if let Ok(header) = Header::from_bytes("Content-Type", content_type) {
        response = response.with_header(header);
    }
    // The asker has gone; nobody else wants the answer.
    let _ = request.respond(response);
}
