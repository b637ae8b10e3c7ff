//! `forebay definitions` against `forebay serve`: what goes out comes in again, and stays.

mod support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use forebay_client::blocking::{DeclareExchange, DeclareQueue};
use forebay_wire::{TableBuf, Value as Field};
use serde_json::{Value, json};
use support::broker::{Broker, Start};
use support::dir::Dir;
use support::tls::Terminator;

/// Written by `rabbitmqctl export_definitions` of RabbitMQ 3.10.8.
const RABBITMQ: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/rabbitmq-3.10.8-definitions.json");

fn start(data: &Path) -> Start {
    Start::silent(data.parent().expect("a home"))
        .flag("--amqp", "127.0.0.1:0")
        .flag("--http", "127.0.0.1:0")
        .flag("--data-dir", data.to_str().expect("a path in UTF-8"))
}

struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

fn definitions(args: &[&str], input: &str) -> Ended {
    let mut child = Command::new(support::forebay())
        .arg("definitions")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary was built");
    // It may have ended without reading.
    let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn export(broker: &Broker) -> Value {
    let ended = definitions(&["export", "--http", &broker.http()], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    serde_json::from_str(&ended.out).expect("JSON")
}

/// Exchanges, queues and bindings, in an order of their own.
fn declared(document: &Value) -> Vec<String> {
    let parts = ["exchanges", "queues", "bindings"];
    let entries = parts.iter().flat_map(|part| document[*part].as_array().expect("a list"));
    let mut texts: Vec<String> = entries.map(Value::to_string).collect();
    texts.sort();
    texts
}

fn declare_a_few(broker: &Broker) {
    let connection = broker.connect();
    let mut channel = connection.channel().expect("a channel");
    let arguments = TableBuf::new().with("alternate-exchange", Field::LongStr(b"rest"));
    for (name, kind, internal) in
        [("rest", "fanout", true), ("orders", "topic", false), ("ümlaut", "headers", false)]
    {
        let durable = DeclareExchange {
            durable: true,
            internal,
            arguments: arguments.clone(),
            ..DeclareExchange::default()
        };
        channel.declare_exchange(name, kind, durable).expect("declared");
    }
    for number in 0..700 {
        let durable = DeclareQueue {
            durable: true,
            arguments: TableBuf::new().with("x-consumer-timeout", Field::I32(60_000 + number)),
            ..DeclareQueue::default()
        };
        let queue = format!("q{number}");
        channel.declare_queue(&queue, durable).expect("declared");
        channel.bind_queue(&queue, "orders", &format!("order.{number}.#")).expect("bound");
    }
    let exclusive = DeclareQueue { exclusive: true, ..DeclareQueue::default() };
    channel.declare_queue("mine", exclusive).expect("declared");
    channel.bind_queue("mine", "orders", "#").expect("bound");
    connection.close().expect("closed");
}

#[test]
fn what_goes_out_of_one_broker_comes_into_another_and_stays() {
    let dir = Dir::new("definitions-trip");
    let (from, to) = (start(&dir.join("a")).ready(), start(&dir.join("b")).ready());
    declare_a_few(&from);
    let file = dir.join("definitions.json");
    let file = file.to_str().expect("a path in UTF-8");
    let ended = definitions(&["export", "--http", &from.http(), file], "");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
    let ended = definitions(&["import", "--http", &to.http(), file], "");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
    assert!(ended.err.contains("declared 1403, 0 left to do"), "{}", ended.err);
    let expected = declared(&export(&from));
    assert_eq!(expected.len(), 3 + 700 + 700, "and nobody's own queue");
    assert_eq!(declared(&export(&to)), expected);
    // It was answered, so it is on disk.
    to.kill();
    let to = start(&dir.join("b")).ready();
    assert_eq!(declared(&export(&to)), expected);
    // A second time changes nothing.
    let ended = definitions(&["import", "--http", &to.http(), file], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(declared(&export(&to)), expected);
}

#[test]
fn what_has_a_name_that_a_broker_made_up_goes_out_and_is_left_aside() {
    let dir = Dir::new("definitions-made-up");
    let (from, to) = (start(&dir.join("a")).ready(), start(&dir.join("b")).ready());
    let connection = from.connect();
    let mut channel = connection.channel().expect("a channel");
    let durable = DeclareQueue { durable: true, ..DeclareQueue::default() };
    channel.declare_queue("q", durable.clone()).expect("declared");
    let made_up = channel.declare_queue("", durable).expect("declared").name;
    channel.bind_queue(&made_up, "amq.topic", "#").expect("bound");
    let file = dir.join("definitions.json");
    let file = file.to_str().expect("a path in UTF-8");
    assert_eq!(definitions(&["export", "--http", &from.http(), file], "").code, Some(0));
    assert_eq!(declared(&export(&from)).len(), 3);
    let ended = definitions(&["import", "--http", &to.http(), file], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let said = "left aside, as the broker makes up such names (`amq.gen-…`): queues 1, bindings 1\ndeclared 1, 0 left to do\n";
    assert_eq!(ended.err, said);
    let there = export(&to);
    assert_eq!((declared(&there).len(), &there["queues"][0]["name"]), (1, &json!("q")));
}

#[test]
fn a_policy_of_flow_is_nothing_to_do_where_it_is_and_a_line_of_configuration_where_it_is_not() {
    let dir = Dir::new("definitions-flow");
    let policy = "[[policies]]\nvhost = \"/\"\nname = \"follow\"\npattern = \"^q\"\napply-to = \"queues\"\n\
                  definition = { flow = \"balance\" }\n";
    let with = start(&dir.join("a")).line(policy).ready();
    let file = dir.join("definitions.json");
    let file = file.to_str().expect("a path in UTF-8");
    assert_eq!(definitions(&["export", "--http", &with.http(), file], "").code, Some(0));
    let again = definitions(&["import", "--http", &with.http(), file], "");
    assert_eq!((again.code, again.out.as_str()), (Some(0), ""), "{}", again.err);
    let without = start(&dir.join("b")).ready();
    let asked = definitions(&["import", "--http", &without.http(), file], "");
    assert_eq!(asked.code, Some(1), "{}", asked.err);
    assert!(asked.out.contains("flow = \"balance\""), "{}", asked.out);
    let configured = start(&dir.join("c")).line(&asked.out).ready();
    let done = definitions(&["import", "--http", &configured.http(), file], "");
    assert_eq!((done.code, done.out.as_str()), (Some(0), ""), "{}", done.err);
}

#[test]
fn a_rabbitmq_file_is_imported_with_the_configuration_it_asks_for() {
    let dir = Dir::new("definitions-rabbitmq");
    let fresh = start(&dir.join("a")).ready();
    let ended = definitions(&["import", "--http", &fresh.http(), RABBITMQ], "");
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("put what is on standard output"), "{}", ended.err);

    let configured = start(&dir.join("b")).line(&ended.out).ready();
    let http = configured.http();
    let ended = definitions(&["import", "--http", &http, RABBITMQ], "");
    assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{}", ended.err);
    let left: Vec<&str> = ended.err.lines().collect();
    assert_eq!(left.len(), 2, "{left:?}");
    // RabbitMQ leaves internal exchanges out of its files, and their bindings in.
    let unbound = "binding of `audit` to `unrouted` in vhost `shop`: NOT_FOUND - no exchange";
    assert!(left[0].starts_with(unbound), "{left:?}");
    assert_eq!(left[1], "declared 11, 1 left to do");

    let mut expected: Value =
        serde_json::from_str(&std::fs::read_to_string(RABBITMQ).expect("it is here")).unwrap();
    expected["bindings"].as_array_mut().unwrap().retain(|it| it["source"] != "unrouted");
    for queue in expected["queues"].as_array_mut().unwrap() {
        queue.as_object_mut().unwrap().remove("type");
    }
    for exchange in expected["exchanges"].as_array_mut().unwrap() {
        let exchange = exchange.as_object_mut().unwrap();
        exchange.entry("internal").or_insert(json!(false));
    }
    let exported = export(&configured);
    assert_eq!(declared(&exported), declared(&expected));
    let names = |part: &str| {
        let entries = exported[part].as_array().expect("a list").iter();
        entries.map(|entry| entry["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names("users"), names("vhosts")),
        (vec!["guest".into(), "app".into()], vec!["/".into(), "shop".into()])
    );
    assert_eq!(exported["topic_permissions"], expected["topic_permissions"]);
    assert_eq!(names("policies"), ["unrouted", "short"]);
    assert_eq!(exported["policies"], expected["policies"]);

    let part = definitions(&["export", "--http", &http, "--vhost", "/"], "");
    let part: Value = serde_json::from_str(&part.out).expect("JSON");
    assert_eq!(
        part["queues"],
        json!([{ "name": "plain", "durable": true, "auto_delete": false, "arguments": {} }])
    );
    assert_eq!(part["users"], Value::Null);
    let into = definitions(&["import", "--http", &http, "--vhost", "shop"], &part.to_string());
    assert_eq!(into.code, Some(0), "{}", into.err);
    assert!(
        declared(&export(&configured)).iter().filter(|it| it.contains("\"plain\"")).count() == 2
    );
}

#[test]
fn of_a_whole_file_one_virtual_host_is_imported_and_the_rest_left_aside() {
    let dir = Dir::new("definitions-one-vhost");
    let broker = start(&dir.join("a")).ready();
    let asked = definitions(&["import", "--http", &broker.http(), RABBITMQ], "");
    drop(broker);
    let configured = start(&dir.join("b")).line(&asked.out).ready();
    let import = ["import", "--http", &configured.http(), "--vhost", "/", RABBITMQ];
    let ended = definitions(&import, "");
    assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{}", ended.err);
    let said = "left aside, as it is not of vhost `/`: exchanges 3, queues 4, bindings 4, policies 2, users 2, \
                vhosts 1, permissions 3, topic_permissions 1\ndeclared 1, 0 left to do\n";
    assert_eq!(ended.err, said);
    let exported = export(&configured);
    let text = declared(&exported).join("\n");
    assert_eq!(declared(&exported).len(), 1, "{text}");
    assert!(text.contains("\"plain\""), "{text}");
}

#[test]
fn policies_of_a_virtual_host_that_the_broker_lacks_are_lines_of_configuration_too() {
    let dir = Dir::new("definitions-vhost-policies");
    let policy = "[[policies]]\nvhost = \"/\"\nname = \"short\"\npattern = \"^q\"\napply-to = \"queues\"\n\
                  definition = { max-length = 5 }\n";
    let with = start(&dir.join("a")).line(policy).ready();
    let exported = definitions(&["export", "--http", &with.http(), "--vhost", "/"], "");
    let mut document: Value = serde_json::from_str(&exported.out).expect("JSON");
    assert_eq!(document["policies"][0]["vhost"], Value::Null, "as RabbitMQ writes them");
    let again = ["import", "--http", &with.http(), "--vhost", "/"];
    let again = definitions(&again, &exported.out);
    assert_eq!((again.code, again.out.as_str()), (Some(0), ""), "{}", again.err);

    let without = start(&dir.join("b")).line("vhosts = [\"/\", \"shop\"]").ready();
    document["parameters"] = json!([{ "component": "federation", "name": "up", "value": {} }]);
    let import = ["import", "--http", &without.http(), "--vhost", "shop"];
    let asked = definitions(&import, &document.to_string());
    assert_eq!(asked.code, Some(1), "{}", asked.err);
    assert!(
        asked.err.contains("parameter `up` of federation: there are none here"),
        "{}",
        asked.err
    );
    assert!(asked.err.ends_with("declared 0, 2 left to do\n"), "{}", asked.err);
    let configured = start(&dir.join("c")).line(&asked.out).ready();
    assert_eq!(export(&configured)["policies"][0]["vhost"], "shop");
}

#[test]
fn patterns_and_values_that_no_forebay_takes_are_named_and_in_no_line() {
    let dir = Dir::new("definitions-patterns");
    let broker = start(&dir.join("a")).ready();
    let mut document = export(&broker);
    let hash = document["users"][0]["password_hash"].clone();
    let user = |name: &str| json!({ "name": name, "password_hash": hash, "tags": [] });
    let may = |name: &str, write: &str| json!({ "user": name, "vhost": "/", "configure": "", "write": write, "read": "" });
    let topic = |name: &str, write: &str| json!({ "user": name, "vhost": "/", "exchange": "amq.topic", "write": write, "read": "" });
    document["users"] = json!([user("around"), user("back"), user("app")]);
    document["permissions"] =
        json!([may("around", "(?=x).*"), may("back", ".*"), may("app", "^app")]);
    document["topic_permissions"] = json!([topic("back", "(a)\\1"), topic("app", "a")]);
    let policy = |name: &str, pattern: &str, value: &str| {
        json!({ "vhost": "/", "name": name, "pattern": pattern, "apply-to": "queues", "priority": 0,
                "definition": { "overflow": value } })
    };
    document["policies"] = json!([
        policy("seen", "(?!x)", "drop-head"),
        policy("lost", "", "drop"),
        policy("good", "", "drop-head")
    ]);
    let asked = definitions(&["import", "--http", &broker.http()], &document.to_string());
    assert_eq!(asked.code, Some(1), "{}", asked.err);
    for named in [
        "permissions: `around` in `/`: permission pattern '(?=x).*' is not usable: ",
        "permissions: `back` in `/`: permission pattern '(a)\\1' is not usable: ",
        "policy `seen`: it is no policy: pattern '(?!x)' is not usable: ",
        "policy `lost`: it is no policy: its definition is not usable: overflow must be drop-head, ",
    ] {
        assert!(asked.err.lines().any(|line| line.starts_with(named)), "{named}: {}", asked.err);
    }
    assert!(asked.err.ends_with("declared 0, 5 left to do\n"), "{}", asked.err);

    let configured = export(&start(&dir.join("b")).line(&asked.out).ready());
    // What limits a user by topic is not left out without what it limits.
    let mut of_users = configured["permissions"].as_array().unwrap().iter().map(|it| &it["user"]);
    assert!(of_users.all(|user| user == "guest" || user == "app"), "{configured}");
    assert_eq!(configured["topic_permissions"], json!([topic("app", "a")]));
    assert_eq!(configured["policies"], json!([policy("good", "", "drop-head")]));
}

/// In the words of RabbitMQ's `set_vhost_limits`, which are parameters.
#[test]
fn limits_of_virtual_hosts_go_out_and_come_in_as_lines_of_configuration() {
    let dir = Dir::new("definitions-limits");
    let limits =
        "vhosts = [\"/\", \"shop\"]\nvhost_limits = [{ vhost = \"shop\", max-connections = 5 }]";
    let with = start(&dir.join("a")).line(limits).ready();
    let whole = export(&with);
    let limit = json!({
        "vhost": "shop", "component": "vhost-limits", "name": "limits", "value": { "max-connections": 5 }
    });
    assert_eq!(whole["parameters"], json!([limit]));
    let part = definitions(&["export", "--http", &with.http(), "--vhost", "shop"], "");
    let part: Value = serde_json::from_str(&part.out).expect("JSON");
    assert_eq!(part["parameters"][0]["value"], limit["value"]);
    let http = with.http();
    for (vhost, document) in [(&[][..], &whole), (&["--vhost", "shop"], &part)] {
        let import = [&["import", "--http", &*http], vhost].concat();
        let again = definitions(&import, &document.to_string());
        assert_eq!((again.code, again.out.as_str()), (Some(0), ""), "{}", again.err);
    }

    let without = start(&dir.join("b")).line("vhosts = [\"/\", \"shop\"]").ready();
    let mut theirs = whole;
    theirs["parameters"][0]["value"]["max-queues"] = 7.into();
    theirs["parameters"].as_array_mut().unwrap().push(
        json!({ "vhost": "/", "component": "vhost-limits", "name": "limits", "value": { "max-connections": -1, "max-queues": -1 } }),
    );
    let asked = definitions(&["import", "--http", &without.http()], &theirs.to_string());
    assert_eq!(asked.code, Some(1), "{}", asked.err);
    let unknown = "limit `max-queues` of vhost `shop`: it means nothing to this version\n";
    assert!(asked.err.starts_with(unknown), "{}", asked.err);
    assert!(asked.err.ends_with("declared 0, 2 left to do\n"), "{}", asked.err);
    let configured = start(&dir.join("c")).line(&asked.out).ready();
    assert_eq!(export(&configured)["parameters"], json!([limit]));
}

/// In the words of RabbitMQ's `set_user_limits`, as it writes them since 3.8.10: an empty object for most users.
#[test]
fn limits_of_users_are_named_as_there_are_none_here() {
    let dir = Dir::new("definitions-user-limits");
    let broker = start(&dir.join("a")).ready();
    let mut document = export(&broker);
    document["users"][0]["limits"] = json!({});
    let without = definitions(&["import", "--http", &broker.http()], &document.to_string());
    assert_eq!(without.code, Some(0), "{}", without.err);
    document["users"][0]["limits"] = json!({ "max-connections": 5, "max-channels": -1 });
    let limited = definitions(&["import", "--http", &broker.http()], &document.to_string());
    let said = "limit `max-connections` of user `guest`: it means nothing to this version\n\
                declared 0, 1 left to do\n";
    assert_eq!((limited.code, &*limited.err), (Some(1), said));
}

#[test]
fn failures_say_why_in_one_sentence() {
    let dir = Dir::new("definitions-failures");
    let broker = start(&dir.join("a"))
        .line(
            "users = [{ name = \"guest\", password = \"guest\", tags = [\"administrator\"] }, \
             { name = \"app\", password = \"app\" }]",
        )
        .ready();
    let http = broker.http();
    let (wrong, lesser) = (format!("http://guest:secret@{http}"), format!("app:app@{http}"));
    for (args, input, code, why) in [
        (&["export", "--http", &*wrong][..], "", 1, "refused the login: login failed"),
        (&["export", "--http", &lesser], "", 1, "has not the tag administrator"),
        (&["import", "--http", &lesser], "{\"queues\": []}", 1, "has not the tag administrator"),
        (&["export", "--http", "127.0.0.1:1"], "", 1, "cannot reach http://127.0.0.1:1"),
        (&["export", "--http", "https://h:x"], "", 2, "HOST:PORT"),
        (&["export", "--http", "nonsense"], "", 2, "HOST:PORT"),
        (&["export", "--http", &http, "--vhost", "absent"], "", 1, "no vhost `absent`"),
        (
            &["export", "--http", &http, "/does/not/exist/f"],
            "",
            1,
            "cannot write /does/not/exist/f",
        ),
        (&["import", "--http", &http, "/does/not/exist"], "", 1, "cannot open /does/not/exist"),
        (&["import", "--http", &http], "queues:", 1, "is not a file of definitions"),
        (&["import", "--http", &http], "[]", 1, "holds no JSON object"),
        (&["import", "--http", &http], "{\"queues\": 1}", 1, "`queues` must be a list"),
        (
            &["import", "--http", &http],
            "{\"queues\": [{\"vhost\": \"/\"}]}",
            1,
            "queues[0]: `name` must be a text",
        ),
        (
            &["import", "--http", &http],
            "{}",
            1,
            "declares nothing: it has none of exchanges, queues",
        ),
        (
            &["import", "--http", &http],
            "{\"queuez\": [], \"product_name\": \"RabbitMQ\"}",
            1,
            "what it has is `product_name`, `queuez`",
        ),
        (&["frob"], "", 2, "unrecognized subcommand"),
    ] {
        let ended = definitions(args, input);
        assert_eq!(ended.code, Some(code), "{args:?} {}", ended.err);
        assert!(ended.err.contains(why), "{args:?} {}", ended.err);
        assert!(code == 2 || ended.err.lines().count() == 1, "{args:?} {}", ended.err);
        assert!(!ended.err.contains("secret") && ended.out.is_empty(), "{args:?} {}", ended.err);
    }
}

#[test]
fn a_file_with_empty_lists_is_imported_and_one_that_declares_nothing_is_not() {
    let dir = Dir::new("definitions-nothing");
    let broker = start(&dir.join("a")).ready();
    let http = broker.http();
    let empty =
        "{\"rabbit_version\": \"3.10.8\", \"exchanges\": [], \"queues\": [], \"bindings\": []}";
    let ended = definitions(&["import", "--http", &http], empty);
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    assert_eq!(ended.err, "declared 0, 0 left to do\n");
    let misspelt =
        "{\"queues\": [], \"bindingz\": [{\"source\": \"x\"}], \"about\": \"us\", \"tags\": []}";
    let ended = definitions(&["import", "--http", &http], misspelt);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(
        ended.err.starts_with("`bindingz`: no part of definitions is called so"),
        "{}",
        ended.err
    );
    assert!(ended.err.ends_with("declared 0, 1 left to do\n"), "{}", ended.err);
    let metadata = "{\"rabbit_version\": \"3.10.8\"}";
    let ended = definitions(&["import", "--http", &http], metadata);
    assert_eq!(ended.code, Some(1), "{}", ended.err);
    assert!(ended.err.contains("standard input declares nothing"), "{}", ended.err);
}

#[test]
fn a_request_that_is_too_large_or_says_nothing_of_itself_is_refused() {
    let dir = Dir::new("definitions-http");
    let broker = start(&dir.join("a")).ready();
    let ask = |head: &str| {
        let mut socket = TcpStream::connect(broker.http()).expect("it listens");
        let request = format!("{head}Host: x\r\nConnection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("sent");
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).expect("answered");
        String::from_utf8_lossy(&answer[9..]).into_owned()
    };
    let login = "Authorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\n";
    assert_eq!(ask("GET /api/definitions HTTP/1.1\r\n"), "401");
    assert_eq!(ask("GET /api/definitionsx HTTP/1.1\r\n"), "404");
    let large = format!("POST /api/definitions HTTP/1.1\r\n{login}Content-Length: 16777217\r\n");
    assert_eq!(ask(&large), "413");
    assert_eq!(ask(&format!("DELETE /api/definitions HTTP/1.1\r\n{login}")), "405");
    assert_eq!(ask(&format!("GET /api/definitions HTTP/1.1\r\n{login}")), "200");
}

#[test]
fn who_tries_passwords_over_http_is_told_in_the_log() {
    let dir = Dir::new("definitions-logins");
    let broker = start(&dir.join("a")).ready();
    let refused = ["definitions", "forebay/overview", "queues/%2F/q"].map(|path| {
        let mut socket = TcpStream::connect(broker.http()).expect("it listens");
        let address = socket.local_addr().expect("its address");
        let login = "Basic Z3Vlc3Q6d3Jvbmc="; // guest:wrong
        let request = format!("GET /api/{path} HTTP/1.1\r\nAuthorization: {login}\r\n\r\n");
        socket.write_all(request.as_bytes()).expect("sent");
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).expect("answered");
        assert_eq!(&answer[9..], b"401");
        format!("refused a login from {address} as \"guest\": the password is another one")
    });
    let said = broker.stop().stderr;
    assert!(refused.iter().all(|line| said.contains(line)), "{said}");
    assert!(!said.contains("wrong"), "{said}");
}

#[test]
fn definitions_travel_by_https_to_whom_an_authority_vouches_for() {
    let dir = Dir::new("definitions-https");
    let broker = start(&dir.join("data")).ready();
    declare_a_few(&broker);
    let address = broker.http();
    let address = address.rsplit(['/', '@']).next().expect("an address").to_owned();
    let terminator = Terminator::start(dir.path(), address);
    let url = terminator.https("localhost", terminator.authority());
    let ended = definitions(&["export", "--http", &url], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let document: Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!(declared(&document), declared(&export(&broker)));
    let ended = definitions(&["import", "--http", &url], &ended.out);
    assert_eq!(ended.code, Some(0), "{}", ended.err);

    // Everything else is told, and nothing is sent.
    let stranger = dir.join("stranger.pem");
    let key = rcgen::KeyPair::generate().expect("a key");
    let other = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
    std::fs::write(&stranger, other.self_signed(&key).expect("a certificate").pem())
        .expect("written");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let plain = listener.local_addr().expect("its address");
    let plain = format!("https://{plain}?cacertfile={}", terminator.authority().display());
    let answering = thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("somebody comes");
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").expect("it is read");
    });
    for (url, code, reason) in [
        (terminator.https("localhost", &stranger), 1, "no authority that is trusted here"),
        (
            terminator.https("127.0.0.1", terminator.authority()),
            1,
            "the certificate of another host",
        ),
        (plain, 1, "is it http://?"),
        (terminator.https("localhost", &dir.join("none.pem")), 2, "none.pem: No such file"),
    ] {
        let ended = definitions(&["export", "--http", &url], "");
        assert_eq!(ended.code, Some(code), "{}", ended.err);
        assert!(ended.err.contains(reason), "{reason}: {}", ended.err);
        assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    }
    answering.join().expect("it answered");
}
