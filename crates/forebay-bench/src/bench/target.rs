//! A broker to measure: at a URL, or one of our own for as long as it takes.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use forebay_wire::AmqpUri;

use crate::broker::{Ground, Served};
use crate::plan::Plan;
use crate::process;
use crate::rabbitmq::RabbitMq;

/// Those who listen on a port here for a broker elsewhere: what they use says nothing about it. As `/proc/PID/comm` tells
/// them, with 15 bytes at most.
const FORWARDERS: [&str; 18] = [
    "ssh",
    "sshd",
    "stunnel",
    "stunnel4",
    "docker-proxy",
    "rootlessport",
    "rootlesskit",
    "slirp4netns",
    "pasta",
    "pasta.avx2",
    "passt",
    "passt.avx2",
    "kubectl",
    "socat",
    "haproxy",
    "envoy",
    "nginx",
    "traefik",
];

/// A broker, and what differs when it is measured.
#[derive(Debug)]
pub(crate) struct Target {
    /// For people; empty until the broker has introduced itself.
    pub(crate) label: String,
    /// Where it is, if there are several.
    pub(super) place: Option<String>,
    pub(crate) url: String,
    /// Its process, if it runs on this machine and we may look.
    pub(crate) pid: Option<u32>,
    /// Whether it is ours to stop.
    pub(crate) own: bool,
    pub(crate) queue_type: Option<String>,
    _process: Process,
}

/// What ends with the target.
#[derive(Debug)]
enum Process {
    NotOurs,
    Forebay {
        _served: Served,
    },
    /// One for several targets.
    RabbitMq {
        _node: Rc<RabbitMq>,
    },
}

impl Target {
    /// One that runs already.
    pub(crate) fn at(url: &str) -> Result<Target, String> {
        let uri = read(url)?;
        let here = ["localhost", "127.0.0.1", "::1"].contains(&uri.host.as_str());
        let pid = if here { process::listener(uri.port) } else { None };
        let pid = pid.filter(|pid| process::name(*pid).is_none_or(|name| !forwards(&name)));
        Ok(Target {
            label: String::new(),
            place: None,
            url: url.to_owned(),
            pid,
            own: false,
            queue_type: None,
            _process: Process::NotOurs,
        })
    }

    /// Several, which are called differently though they may be of one product and version, or one broker.
    pub(crate) fn at_each(urls: &[String]) -> Result<Vec<Target>, String> {
        let mut targets = Vec::new();
        let mut uris = Vec::new();
        for url in urls {
            targets.push(Target::at(url)?);
            uris.push(read(url)?);
        }
        if urls.len() > 1 {
            for (target, place) in targets.iter_mut().zip(places(&uris)) {
                target.place = Some(place);
            }
        }
        Ok(targets)
    }

    /// A broker of our own, on a new directory below `parent`.
    pub(crate) fn serve(program: Option<PathBuf>, parent: PathBuf) -> Result<Target, String> {
        let program = match program {
            Some(program) => program,
            None => std::env::current_exe().map_err(|error| format!("where are we? {error}"))?,
        };
        let served = Served::start(&program, &parent)?;
        Ok(Target {
            label: String::new(),
            place: None,
            url: served.url.clone(),
            pid: Some(served.pid()),
            own: true,
            queue_type: None,
            _process: Process::Forebay { _served: served },
        })
    }

    /// A RabbitMQ of our own, below `parent`: once with classic queues and once with quorum queues.
    pub(crate) fn rabbitmq(parent: &Path) -> Result<Vec<Target>, String> {
        let node = Rc::new(RabbitMq::start(parent, Ground::default())?);
        let kinds = ["classic", "quorum"].into_iter();
        Ok(kinds
            .map(|kind| Target {
                label: String::new(),
                place: None,
                url: node.url.clone(),
                pid: Some(node.pid),
                own: true,
                queue_type: Some(kind.to_owned()),
                _process: Process::RabbitMq { _node: node.clone() },
            })
            .collect())
    }

    /// The plan, on this broker.
    pub(crate) fn plan(&self, plan: &Plan) -> Plan {
        Plan {
            url: self.url.clone(),
            broker_pid: self.pid,
            depth: true,
            queue_type: self.queue_type.clone().or_else(|| plan.queue_type.clone()),
            ..plan.clone()
        }
    }
}

/// Whether a process of that name is none that serves.
fn forwards(name: &str) -> bool {
    FORWARDERS.contains(&name)
}

fn read(url: &str) -> Result<AmqpUri, String> {
    url.parse().map_err(|error| format!("cannot read the URL: {error}"))
}

/// What tells them apart, a name each: addresses; where these are the same, virtual hosts; where these are, too, numbers.
fn places(uris: &[AmqpUri]) -> Vec<String> {
    let address = |uri: &AmqpUri| format!("{}:{}", uri.host, uri.port);
    let named = uris.iter().enumerate().map(|(at, uri)| {
        let mut name = address(uri);
        let there = || uris.iter().enumerate().filter(|(_, other)| address(other) == address(uri));
        let same: Vec<usize> =
            there().filter(|(_, other)| other.vhost == uri.vhost).map(|(other, _)| other).collect();
        if there().count() > same.len() {
            name.push_str(&format!(", virtual host {}", uri.vhost));
        }
        if let [first, ..] = same[..]
            && first < at
        {
            let number = same.iter().filter(|other| **other <= at).count();
            name.push_str(&format!(" ({number})"));
        }
        name
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_before_anything_is_measured() {
        assert!(Target::at("http://localhost").unwrap_err().contains("URL"));
        let far = Target::at("amqp://broker.example:5672").unwrap();
        assert_eq!((far.pid, far.own), (None, false));
    }

    #[test]
    fn who_passes_bytes_on_is_not_the_broker() {
        // TLS before a broker, and containers without root, whose program is named after what the processor can do.
        for name in ["stunnel4", "rootlesskit", "pasta.avx2"] {
            assert!(forwards(name), "{name}");
        }
        assert!(!forwards("beam.smp") && !forwards("forebay"));
    }

    #[test]
    fn brokers_are_told_apart_by_as_much_of_their_urls_as_that_takes() {
        let places = |urls: &[&str]| {
            let uris: Vec<AmqpUri> = urls.iter().map(|url| url.parse().unwrap()).collect();
            places(&uris)
        };
        assert_eq!(places(&["amqp://a", "amqp://b/v"]), ["a:5672", "b:5672"]);
        assert_eq!(
            places(&["amqp://a/v", "amqp://a", "amqp://b"]),
            ["a:5672, virtual host v", "a:5672, virtual host /", "b:5672"]
        );
        let twice = ["amqp://a", "amqp://me:x@a/%2f", "amqp://a/v", "amqp://a"];
        let [first, second, other, third] = &places(&twice)[..] else { panic!("a name each") };
        assert_eq!(first, "a:5672, virtual host /");
        assert_eq!(other, "a:5672, virtual host v");
        assert_eq!([second, third], [&format!("{first} (2)"), &format!("{first} (3)")]);
    }
}
