//! Every key, declared once: its type, default, unit and text. The reference page is printed from it.

use std::fmt::Write;

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// A list of strings.
    List,
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Number,
    /// A number of bytes, or a string such as `"256MB"`.
    Size,
    /// A list of tables, such as [`UserSetting`](super::UserSetting)s.
    Tables,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Text => "string",
            Kind::List => "list of strings",
            Kind::Bool => "boolean",
            Kind::Number => "number",
            Kind::Size => "size",
            Kind::Tables => "list of tables",
        }
    }
}

/// One configuration key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Its name in the file; the variable is `FOREBAY_` and this in capitals.
    pub name: &'static str,
    /// What its value looks like.
    pub kind: Kind,
    /// Default, as one would write it.
    pub default: &'static str,
    /// Unit of the number, or empty.
    pub unit: &'static str,
    /// The flag of `forebay serve`, or empty.
    pub flag: &'static str,
    /// What it does.
    pub text: &'static str,
}

impl Key {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("FOREBAY_{}", self.name.to_ascii_uppercase())
    }
}

/// All keys, in the order of the reference page.
pub const KEYS: &[Key] = &[
    Key {
        name: "data_dir",
        kind: Kind::Text,
        default: "\"./forebay-data\"",
        unit: "",
        flag: "--data-dir",
        text: "Directory of the message store; made if it does not exist. One server at a time.",
    },
    Key {
        name: "in_memory",
        kind: Kind::Bool,
        default: "false",
        unit: "",
        flag: "--in-memory",
        text: "Keep everything in this process and nothing on disk.",
    },
    Key {
        name: "amqp",
        kind: Kind::List,
        default: "[\"127.0.0.1:5672\"]",
        unit: "host:port",
        flag: "--amqp",
        text: "Addresses to accept AMQP connections on. `[::]` takes IPv4 too, unless an address of IPv4 with the same port is listed: then IPv4 is taken there alone. Port 0 picks a free one.",
    },
    Key {
        name: "amqps",
        kind: Kind::List,
        default: "[]",
        unit: "host:port",
        flag: "--amqps",
        text: "Reserved for AMQP over TLS; this version refuses to start with it.",
    },
    Key {
        name: "http",
        kind: Kind::Text,
        default: "\"127.0.0.1:15672\"",
        unit: "host:port",
        flag: "--http",
        text: "Address of `/metrics`, `/healthz`, `/api/forebay/…`, `/api/queues/…` and `/api/definitions`; `\"off\"` has none. Port 0 picks a free one.",
    },
    Key {
        name: "memory_budget",
        kind: Kind::Size,
        default: "a quarter of the memory, 16 MiB to `\"256MB\"`",
        unit: "bytes",
        flag: "--memory-budget",
        text: "What messages in memory may take together, and with them all that the process takes: messages keep half of it in any case. From half of what they have on backlogs go to disk, at all of it publishers wait. At least 16 MiB.",
    },
    Key {
        name: "durability",
        kind: Kind::Text,
        default: "\"always\"",
        unit: "",
        flag: "--durability",
        text: "`always`: confirmed means synced to disk. `interval=MS`: synced every MS milliseconds. `os`: synced when the system likes. The last two are not safe against power loss.",
    },
    Key {
        name: "log_cap",
        kind: Kind::Size,
        default: "\"1GiB\"",
        unit: "bytes",
        flag: "",
        text: "Size of the log above which the live rest of old segments is moved away. 256 MiB to 1 PiB.",
    },
    Key {
        name: "salvage",
        kind: Kind::Bool,
        default: "false",
        unit: "",
        flag: "--salvage",
        text: "Start with a damaged store and go on without what is missing, which is logged.",
    },
    Key {
        name: "users",
        kind: Kind::Tables,
        default: "guest with password guest and all permissions in `/`",
        unit: "",
        flag: "",
        text: "Who may log in: `name`, `password` or `password_hash`, `tags`, `permissions` (`vhost`, `configure`, `write`, `read`) and `topic_permissions` (`vhost`, `exchange`, `write`, `read`). In a file only; a list of your own replaces guest.",
    },
    Key {
        name: "vhosts",
        kind: Kind::List,
        default: "[\"/\"]",
        unit: "",
        flag: "",
        text: "Virtual hosts that exist.",
    },
    Key {
        name: "trace_vhosts",
        kind: Kind::List,
        default: "[]",
        unit: "",
        flag: "",
        text: "Virtual hosts with the firehose on: every publish and delivery is told to their exchange `amq.rabbitmq.trace`.",
    },
    Key {
        name: "vhost_limits",
        kind: Kind::Tables,
        default: "[]",
        unit: "connections",
        flag: "",
        text: "Connections that a virtual host may have at one time: `vhost`, `max-connections`. One more is refused with 530. In a file only.",
    },
    Key {
        name: "policies",
        kind: Kind::Tables,
        default: "[]",
        unit: "",
        flag: "",
        text: "What exchanges and queues have that were declared without it: `vhost`, `name`, `pattern`, `apply-to`, `priority`, `definition` with `alternate-exchange` or what queues may have. In a file only.",
    },
    Key {
        name: "loopback_users",
        kind: Kind::List,
        default: "[\"guest\"]",
        unit: "",
        flag: "",
        text: "Users that may log in from this machine only.",
    },
    Key {
        name: "channel_max",
        kind: Kind::Number,
        default: "2047",
        unit: "channels",
        flag: "",
        text: "Channels a connection may have, 1 to 65535.",
    },
    Key {
        name: "frame_max",
        kind: Kind::Size,
        default: "131072",
        unit: "bytes",
        flag: "",
        text: "Largest frame, head and end included; 4096 to 16 MiB. A connection keeps at most one partial frame.",
    },
    Key {
        name: "heartbeat_s",
        kind: Kind::Number,
        default: "60",
        unit: "seconds",
        flag: "",
        text: "Heartbeat interval offered to clients; 0 offers none.",
    },
    Key {
        name: "handshake_timeout_ms",
        kind: Kind::Number,
        default: "10000",
        unit: "milliseconds",
        flag: "",
        text: "A connection that is not open by then is closed; 1 to 86400000 (a day).",
    },
    Key {
        name: "ack_timeout_ms",
        kind: Kind::Number,
        default: "1800000",
        unit: "milliseconds",
        flag: "--ack-timeout-ms",
        text: "A channel that leaves a delivery unacknowledged for longer is closed with 406, and its deliveries go back to their queues. Checked once a minute, or eight times in the timeout if that is more often. 0: never. A client that announces `forebay.leases`, as ours does, is asked at half of it and keeps them while it answers. `x-consumer-timeout` of a queue or a consumer comes first.",
    },
    Key {
        name: "message_max",
        kind: Kind::Size,
        default: "\"16MiB\"",
        unit: "bytes",
        flag: "",
        text: "Largest message body; at most 512 MiB.",
    },
    Key {
        name: "connections_max",
        kind: Kind::Number,
        default: "open-file limit less 128, 65536 at most",
        unit: "connections",
        flag: "",
        text: "Connections at one time; one more is closed at once.",
    },
    Key {
        name: "log_format",
        kind: Kind::Text,
        default: "\"text\"",
        unit: "",
        flag: "--log-format",
        text: "Log lines on standard error: `text` for people, `json` for machines.",
    },
    Key {
        name: "log_level",
        kind: Kind::Text,
        default: "\"info\"",
        unit: "",
        flag: "--log-level",
        text: "`error`, `warn`, `info`, `debug`, `trace`, `off`, or a filter such as `info,forebay_server=debug`.",
    },
    Key {
        name: "drain_timeout_ms",
        kind: Kind::Number,
        default: "10000",
        unit: "milliseconds",
        flag: "",
        text: "How long clients may take to close their connections when the server stops; 86400000 (a day) at most.",
    },
];

/// The table of `docs/configuration.md`.
pub fn reference_page() -> String {
    let mut page = String::from(
        "| key | type | default | unit | flag | what it does |\n|---|---|---|---|---|---|\n",
    );
    for key in KEYS {
        let default = match key.default.contains('`') || key.default.contains(' ') {
            true => key.default.to_owned(),
            false => format!("`{}`", key.default),
        };
        let flag = match key.flag {
            "" => String::new(),
            flag => format!("`{flag}`"),
        };
        let (name, kind, unit, text) = (key.name, key.kind.name(), key.unit, key.text);
        // Writing to a string cannot fail.
        let _ = writeln!(page, "| `{name}` | {kind} | {default} | {unit} | {flag} | {text} |");
    }
    page
}

#[cfg(test)]
mod tests {
    use super::{KEYS, reference_page};
    use crate::config::Layer;

    #[test]
    fn the_table_names_exactly_the_keys_that_a_file_may_have() {
        let error = Layer::from_toml("f", "no_such_key = 1").unwrap_err().to_string();
        let (_, expected) = error.split_once("expected one of").unwrap();
        let mut known: Vec<&str> =
            expected.split('`').enumerate().filter(|(i, _)| i % 2 == 1).map(|(_, k)| k).collect();
        let mut declared: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
        known.sort_unstable();
        declared.sort_unstable();
        assert_eq!(known, declared);
    }

    #[test]
    fn the_reference_page_is_up_to_date() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let page = std::fs::read_to_string(path).unwrap();
        let table = reference_page();
        assert!(page.contains(&table), "docs/configuration.md should contain:\n{table}");
    }
}
