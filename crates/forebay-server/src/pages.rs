//! What the HTTP endpoint answers: metrics, health, what goes on and definitions.

use crate::http::{Method, Request, Response};
use crate::mailbox::Snapshot;
use crate::management::{self, Over};
use crate::metrics;

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
<li>/api/queues/VHOST/NAME: one queue, as JSON (%2F is the vhost /); for monitoring</li>
<li><a href=\"/api/definitions\">/api/definitions</a>: what is declared, as RabbitMQ writes it; for administrators</li>
</ul>
</body></html>
";

/// Answers any request; `status` asks the shard and may take its time.
pub(crate) fn answer(
    request: &mut Request<'_>,
    management: &Over,
    status: impl Fn() -> Option<Snapshot>,
) -> Response {
    if management::is_for(&request.head.path) {
        return management.answer(request);
    }
    let path = request.head.path.as_str();
    let known = matches!(path, "/" | "/metrics" | "/healthz");
    let allowed = matches!(request.head.method, Method::Get | Method::Head);
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
    Response { code, content_type, body }
}
