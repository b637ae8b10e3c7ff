//! The HTTP endpoint: what it answers, and that nobody who asks wrongly, slowly or without end holds up the broker.

mod rig;

use forebay_client::blocking::{DeclareQueue, Publication};
use forebay_server::{Config, Server};
use rig::*;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

/// A server with an HTTP endpoint, and where that is.
fn with_http() -> (Server, SocketAddr) {
    let mut config = in_memory();
    config.http = Some("127.0.0.1:0".into());
    let server = start(config);
    let at = server.addresses().http.unwrap();
    (server, at)
}

/// Sends bytes and reads until the end; what comes of a socket that was reset is what came before.
fn say(at: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = silent(at);
    // The endpoint may have hung up in the middle.
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Somebody who connects and says nothing.
fn silent(at: SocketAddr) -> TcpStream {
    let socket = TcpStream::connect(at).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

fn assert_healthy(at: SocketAddr) {
    assert_eq!(http(at, "GET", "/healthz").1, "ok\n");
}

#[test]
fn metrics_and_health_are_served_over_http() {
    let (server, at) = with_http();
    let _connection = connect(&server);
    let (status, page) = http(at, "GET", "/metrics");
    assert!(status.contains("200"), "{status}");
    assert!(page.contains("\nrabbitmq_connections 1\n"), "{page}");
    assert!(page.contains("# TYPE rabbitmq_queue_messages_ready gauge\n"));
    assert!(page.contains("# TYPE forebay_commits_total counter\n"));
    assert_eq!(http(at, "GET", "/healthz").1, "ok\n");
    assert!(http(at, "GET", "/").1.contains("/metrics"));
    assert!(http(at, "GET", "/nothing").0.contains("404"));
    assert!(http(at, "POST", "/metrics").0.contains("405"));
    server.stop().unwrap();
}

#[test]
fn who_is_not_let_in_because_too_many_do_not_log_in_is_counted() {
    let mut config = Config { connections_max: 4, ..in_memory() };
    config.http = Some("127.0.0.1:0".into());
    let server = start(config);
    let at = server.addresses().http.unwrap();
    let _silent = [socket(&server), socket(&server)];
    let mut third = socket(&server);
    assert_eq!(third.read(&mut [0]).unwrap_or(0), 0, "it is closed");
    let (_, page) = http(at, "GET", "/metrics");
    assert!(page.contains("\nforebay_handshakes_refused_total 1\n"), "{page}");
    server.stop().unwrap();
}

#[test]
fn who_waits_for_whom_is_told_to_those_who_log_in() {
    let (server, at) = with_http();
    let connection = connect(&server);
    let mut channel = connection.channel().unwrap();
    channel.declare_queue("lonely", DeclareQueue::default()).unwrap();
    channel.confirm_select(50).unwrap();
    channel
        .publish(&Publication { routing_key: "lonely", body: b"m", ..Default::default() })
        .unwrap();
    channel.wait_settled().unwrap();

    let (_, page) = http(at, "GET", "/metrics");
    let line = "\nforebay_waiting{gate=\"no_consumer\",waits_for=\"consumers\"} 1\n";
    assert!(page.contains(line), "{page}");
    assert!(page.contains("# TYPE forebay_sync_wait_seconds histogram\n"), "{page}");
    assert!(page.contains("\nforebay_sync_wait_seconds_bucket{le=\"+Inf\"} 0\n"), "{page}");

    assert!(http(at, "GET", "/api/forebay/waits").0.contains("401"));
    let (status, body) = http_as("guest:guest", at, "/api/forebay/waits");
    assert!(status.contains("200"), "{status}");
    let waits: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(
        waits["edges"][0]["waiter"],
        serde_json::json!({ "kind": "queue", "vhost": "/", "name": "lonely" })
    );
    assert_eq!(waits["edges"][0]["gate"], "no_consumer");
    assert_eq!(waits["edges"][0]["waiting"], true);
    let (_, body) = http_as("guest:guest", at, "/api/forebay/overview");
    let overview: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(overview["messages"]["published"], 1);
    assert_eq!(overview["queues"][0]["ready"], 1);
    assert_eq!(overview["edges"][0]["gate"], "no_consumer");
    let (_, body) = http_as("guest:guest", at, "/api/queues/%2f/lonely");
    let queue: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((&queue["messages_ready"], &queue["consumers"]), (&1.into(), &0.into()));
    assert_eq!(queue["forebay"]["waits"][0]["gate"], "no_consumer");
    for nobody in ["%2f/crowd", "other/lonely", "lonely", "%2f/%ff"] {
        let (status, _) = http_as("guest:guest", at, &format!("/api/queues/{nobody}"));
        assert!(status.contains("404"), "{nobody}: {status}");
    }
    let (_, nobody) = http_as("guest:guest", at, "/api/queues/%2f/the%20crowd");
    assert!(nobody.contains("no queue 'the crowd' in vhost '/'"), "{nobody}");
    // RabbitMQ lists them there.
    for all in ["", "/", "/%2f", "/%2f/"] {
        let (status, body) = http_as("guest:guest", at, &format!("/api/queues{all}"));
        assert!(status.contains("404") && body.contains("/api/queues/VHOST/NAME"), "{all}: {body}");
    }
    assert!(http(at, "GET", "/api/queues/%2f/lonely").0.contains("401"));
    assert!(http_as("guest:guest", at, "/api/forebay/nothing").0.contains("404"));
    assert!(http_as("guest:wrong", at, "/api/forebay/overview").0.contains("401"));
    server.stop().unwrap();
}

fn import(at: SocketAddr, body: &str) -> String {
    let login = forebay_broker::access::base64::encode(b"guest:guest");
    let length = body.len();
    let head = format!(
        "POST /api/definitions HTTP/1.1\r\nAuthorization: Basic {login}\r\nContent-Length: {length}\r\n\r\n"
    );
    say(at, format!("{head}{body}").as_bytes())
}

#[test]
fn a_declaration_that_fits_no_frame_is_refused_and_the_others_are_made() {
    let (server, at) = with_http();
    let long = "x".repeat(1 << 20);
    let body = format!(
        r#"{{"queues":[{{"name":"a","vhost":"/"}},{{"name":"b","vhost":"/","arguments":{{"x":"{long}"}}}},{{"name":"c","vhost":"/"}}]}}"#
    );
    let answer = import(at, &body);
    assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("\"declared\":2"), "{answer}");
    let refused = r#""refused":[{"reason":"it has more bytes than a frame may have (131072)","what":"queue `b` in vhost `/`"}]"#;
    assert!(answer.contains(refused), "{answer}");
    server.stop().unwrap();
}

/// As a RabbitMQ does with what it exports itself.
#[test]
fn queues_whose_names_a_broker_made_up_are_passed_over() {
    let (server, at) = with_http();
    let body = r#"{
        "queues": [{"name":"amq.gen-Xa","vhost":"/"},{"name":"q","vhost":"/"}],
        "bindings": [
            {"vhost":"/","source":"amq.topic","destination":"amq.gen-Xa","destination_type":"queue","routing_key":"a"},
            {"vhost":"/","source":"amq.topic","destination":"q","destination_type":"queue","routing_key":"a"},
            {"vhost":"/","source":"amq.topic","destination":"amq.fanout","destination_type":"exchange","routing_key":"a"}
        ]
    }"#;
    let answer = import(at, body);
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        answer.contains("\"declared\":3") && answer.contains("\"names_made_up\":2"),
        "{answer}"
    );
    server.stop().unwrap();
}

/// The import's own connection takes what the broker offers, like any other.
#[test]
fn definitions_are_declared_whatever_connections_may_have() {
    let mut config = Config { frame_max_bytes: 8192, channel_max: 1, ..in_memory() };
    config.http = Some("127.0.0.1:0".into());
    let server = start(config);
    let at = server.addresses().http.unwrap();
    let body = r#"{"queues":[{"name":"q","vhost":"/","durable":true,"auto_delete":false,"arguments":{}}]}"#;
    let answer = import(at, body);
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.contains("\"declared\":1"), "{answer}");
    server.stop().unwrap();
}

#[test]
fn what_is_no_request_is_told_so_and_the_next_one_is_answered() {
    let (server, at) = with_http();
    let no_end = format!("GET / HTTP/1.1\r\nX-Long: {}", "x".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(1000));
    for (said, code) in [
        ("GET /healthz HTTP/2.0\r\n\r\n", "505"),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "505"),
        ("AMQP\0\0\x09\x01\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nContent-Length: many\r\n\r\n", "400"),
        ("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "411"),
        (&no_end, "431"),
        (&many, "431"),
    ] {
        let answer = say(at, said.as_bytes());
        // A client that has more to say than is taken may find the answer gone with its connection.
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {code} ")) || said.len() > 1 << 19,
            "{said:.40}: {answer}"
        );
        assert_healthy(at);
    }
    let head = say(at, b"HEAD /healthz HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    server.stop().unwrap();
}

#[test]
fn a_body_that_is_announced_and_never_comes_costs_nobody_else_anything() {
    let (server, at) = with_http();
    let login = forebay_broker::access::base64::encode(b"guest:guest");
    let mut waiting = Vec::new();
    for (path, length) in
        [("/", "18446744073709551615"), ("/metrics", "7"), ("/api/definitions", "100")]
    {
        let mut socket = silent(at);
        let head = format!(
            "POST {path} HTTP/1.1\r\nAuthorization: Basic {login}\r\nContent-Length: {length}\r\n\r\n"
        );
        socket.write_all(head.as_bytes()).unwrap();
        waiting.push(socket);
        assert_healthy(at);
    }
    let mut answer = String::new();
    waiting[0].read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 404 ") || answer.starts_with("HTTP/1.1 405 "), "{answer}");
    // Too large is said before any of it is sent.
    let head = format!(
        "POST /api/definitions HTTP/1.1\r\nAuthorization: Basic {login}\r\nContent-Length: 99999999\r\n\r\n"
    );
    assert!(say(at, head.as_bytes()).starts_with("HTTP/1.1 413 "));
    // The one that waits for its body is hung up on.
    server.stop().unwrap();
    assert_eq!(waiting[2].read(&mut [0; 1000]).unwrap_or(0), 0, "and not answered");
}

#[test]
fn a_client_that_waits_to_be_told_to_go_on_is_told() {
    let (server, at) = with_http();
    let login = forebay_broker::access::base64::encode(b"guest:guest");
    let mut socket = silent(at);
    let head = format!(
        "POST /api/definitions HTTP/1.1\r\nAuthorization: Basic {login}\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
    );
    socket.write_all(head.as_bytes()).unwrap();
    let mut go_on = [0; 25];
    socket.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    socket.write_all(b"{}").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    server.stop().unwrap();
}

#[test]
fn connections_without_a_request_are_bounded_and_those_that_end_make_room() {
    let (server, at) = with_http();
    let held: Vec<TcpStream> = (0..32).map(|_| silent(at)).collect();
    let refused = http(at, "GET", "/healthz").0;
    assert!(refused.contains("503"), "{refused}");
    drop(held);
    until("there is room again", || http(at, "GET", "/healthz").0.contains("200"));
    server.stop().unwrap();
}

#[test]
fn clients_that_reset_their_connections_at_once_end_nothing() {
    let (server, at) = with_http();
    for _ in 0..200 {
        let socket = TcpStream::connect(at).unwrap();
        let socket = socket2::Socket::from(socket);
        // Closing it resets it.
        socket.set_linger(Some(std::time::Duration::ZERO)).unwrap();
        (&socket).write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
    }
    until("there is room again", || http(at, "GET", "/healthz").0.contains("200"));
    server.stop().unwrap();
}
