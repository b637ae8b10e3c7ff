//! One look at a queue: what `/api/queues/VHOST/NAME` said, of a Forebay or a RabbitMQ.

use std::collections::HashMap;

use forebay::pipeline::explain::queue::{ConsumerLook, GateLook, QueueLook};
use serde::Deserialize;

/// Channels that are asked who holds what.
const CHANNELS_MAX: usize = 50;

/// Gates at which publishers wait.
const PUBLISHERS: [&str; 5] = ["batch", "memory", "space", "unconfirmed", "balance"];

/// The document, as far as it is used. RabbitMQ leaves out what it has not counted yet.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Seen {
    #[serde(default)]
    messages_ready: u64,
    #[serde(default)]
    messages_unacknowledged: u64,
    #[serde(default)]
    consumer_details: Vec<Consumer>,
    #[serde(default)]
    message_stats: Stats,
    forebay: Option<Counted>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Stats {
    #[serde(default)]
    publish: u64,
    #[serde(default)]
    ack: u64,
    /// Deliveries that need no acknowledgement, which only a RabbitMQ tells apart.
    #[serde(default)]
    deliver_no_ack: u64,
    #[serde(default)]
    get_no_ack: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Consumer {
    #[serde(default)]
    consumer_tag: String,
    #[serde(default)]
    prefetch_count: u64,
    /// Where only one at a time gets messages, who waits to be it gets none.
    #[serde(default = "is_active")]
    active: bool,
    unacknowledged: Option<u64>,
    /// Only a Forebay counts it: a total that never falls.
    #[serde(default)]
    publishes_held_us: u64,
    #[serde(default)]
    channel_details: Channel,
}

fn is_active() -> bool {
    true
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Channel {
    #[serde(default)]
    name: String,
}

/// What only a Forebay counts: totals that never fall.
#[derive(Debug, Clone, Default, Deserialize)]
struct Counted {
    waits: Vec<Gate>,
    gates: Vec<Gate>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Gate {
    gate: String,
    waited_us: u64,
}

/// What a channel holds, all its consumers together.
#[derive(Debug, Deserialize)]
struct ChannelSeen {
    messages_unacknowledged: u64,
    consumer_count: u64,
    #[serde(default)]
    global_prefetch_count: u64,
}

impl Seen {
    /// Whether the broker counts waits.
    pub(super) fn counts(&self) -> bool {
        self.forebay.is_some()
    }

    /// Channels of consumers of which is not known how many messages they hold.
    pub(super) fn silent_channels(&self) -> Vec<String> {
        let silent = self.consumer_details.iter().filter(|one| one.unacknowledged.is_none());
        let mut names: Vec<String> = silent.map(|one| one.channel_details.name.clone()).collect();
        names.sort_unstable();
        names.dedup();
        names.retain(|name| !name.is_empty());
        names.truncate(CHANNELS_MAX);
        names
    }

    /// What `/api/channels/NAME` said of one. Of several consumers on it none is known alone.
    pub(super) fn hear_channel(&mut self, name: &str, body: &[u8]) {
        let Ok(channel) = serde_json::from_slice::<ChannelSeen>(body) else { return };
        for consumer in self.consumer_details.iter_mut() {
            if consumer.channel_details.name == name {
                if channel.consumer_count == 1 {
                    consumer.unacknowledged = Some(channel.messages_unacknowledged);
                }
                if consumer.prefetch_count == 0 {
                    consumer.prefetch_count = channel.global_prefetch_count;
                }
            }
        }
    }

    /// What happened from `before` to this, `looked_us` later.
    pub(super) fn since(&self, before: &Seen, looked_us: u64) -> QueueLook {
        let (is, was) = (&self.message_stats, &before.message_stats);
        let gone = |stats: &Stats| stats.ack + stats.deliver_no_ack + stats.get_no_ack;
        let mut look = QueueLook::default();
        look.looked_us = looked_us;
        look.arrived = is.publish.saturating_sub(was.publish);
        look.left = gone(is).saturating_sub(gone(was));
        (look.ready, look.unacked) = (self.messages_ready, self.messages_unacknowledged);
        let active = self.consumer_details.iter().filter(|one| one.active);
        look.consumers = active.map(|one| one.since(before)).collect();
        if let Some(now) = &self.forebay {
            let was = before.forebay.clone().unwrap_or_default();
            look.waits = Some(waited(&now.waits, &was.waits));
            look.publishers = waited(&now.gates, &was.gates);
            look.publishers.retain(|gate| PUBLISHERS.contains(&gate.gate.as_str()));
        }
        look
    }
}

impl Consumer {
    fn since(&self, before: &Seen) -> ConsumerLook {
        let channel = &self.channel_details.name;
        let same = |one: &&Consumer| {
            one.consumer_tag == self.consumer_tag && one.channel_details.name == *channel
        };
        let held_before_us = before.consumer_details.iter().find(same);
        let mut look = ConsumerLook::default();
        look.name = match channel.as_str() {
            "" => format!("consumer {}", self.consumer_tag),
            channel => format!("the consumer of {channel}"),
        };
        (look.prefetch, look.unacked) = (self.prefetch_count, self.unacknowledged);
        look.publishes_held_us = held_before_us
            .map_or(0, |was| self.publishes_held_us.saturating_sub(was.publishes_held_us));
        look
    }
}

fn waited(now: &[Gate], before: &[Gate]) -> Vec<GateLook> {
    let was: HashMap<&str, u64> =
        before.iter().map(|gate| (gate.gate.as_str(), gate.waited_us)).collect();
    let look = |gate: &Gate| {
        let before_us = was.get(gate.gate.as_str()).copied().unwrap_or(0);
        let waited_us = gate.waited_us.saturating_sub(before_us);
        GateLook { gate: gate.gate.clone(), waited_us }
    };
    now.iter().map(look).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn seen(document: Value) -> Seen {
        serde_json::from_value(document).expect("it is a queue")
    }

    #[test]
    fn two_looks_at_a_forebay_are_what_happened_between_them() {
        let at = |published: u64, waited_us: u64| {
            seen(json!({
                "messages_ready": 7, "messages_unacknowledged": 2,
                "consumer_details": [{ "consumer_tag": "c", "prefetch_count": 2, "unacknowledged": 2,
                    "publishes_held_us": waited_us / 1000,
                    "channel_details": { "name": "10.0.0.1:4000 (1)" } }],
                "message_stats": { "publish": published, "ack": published - 9 },
                "forebay": {
                    "waits": [{ "gate": "credit", "waited_us": waited_us, "waiting": 1 }],
                    "gates": [{ "gate": "credit", "waited_us": 1, "waiting": 1 },
                        { "gate": "batch", "waited_us": waited_us, "waiting": 1 }],
                },
            }))
        };
        let look = at(500, 6_000_000).since(&at(100, 1_000_000), 5_000_000);
        assert_eq!((look.arrived, look.left, look.ready, look.unacked), (400, 400, 7, 2));
        let gate = |name: &str| GateLook { gate: name.into(), waited_us: 5_000_000 };
        assert_eq!(look.waits, Some(vec![gate("credit")]));
        assert_eq!(look.publishers, [gate("batch")]);
        assert_eq!(look.consumers[0].name, "the consumer of 10.0.0.1:4000 (1)");
        assert_eq!(look.consumers[0].publishes_held_us, 5_000);
        assert_eq!(look.cause().name(), "credit-used");
    }

    #[test]
    fn who_waits_to_be_the_single_active_consumer_is_not_idle() {
        let look = |waits: bool| {
            seen(json!({
                "messages_unacknowledged": 24, "message_stats": { "publish": 25, "ack": 25 },
                "consumer_details": [
                    { "consumer_tag": "a", "active": true, "unacknowledged": 24 },
                    { "consumer_tag": "b", "active": !waits, "unacknowledged": 0 }],
            }))
            .since(&seen(json!({})), 5_000_000)
        };
        assert_eq!(
            [look(true), look(false)].map(|look| look.cause().name()),
            ["nothing", "hoarded"]
        );
    }

    #[test]
    fn on_a_rabbitmq_channels_tell_who_holds_what() {
        let consumer = |channel: &str| {
            json!({ "consumer_tag": channel, "prefetch_count": 250, "ack_required": true,
                "channel_details": { "name": channel } })
        };
        let before = seen(json!({ "messages_ready": 0 })); // nothing counted yet
        let mut now = seen(json!({
            "messages_ready": 0, "messages_unacknowledged": 24,
            "message_stats": { "publish": 25, "ack": 1 },
            "consumer_details": [consumer("a"), consumer("b")],
        }));
        assert!(!now.counts());
        assert_eq!(now.silent_channels(), ["a", "b"]);
        for (name, unacked) in [("a", 24), ("b", 0)] {
            let body = json!({ "messages_unacknowledged": unacked, "consumer_count": 1 });
            now.hear_channel(name, body.to_string().as_bytes());
        }
        now.hear_channel("a", b"no JSON");
        let look = now.since(&before, 5_000_000);
        assert_eq!(look.waits, None);
        assert_eq!(look.cause().name(), "hoarded");
    }
}
