//! What one source of settings says: the command line, the environment, or a file.

use super::error::ConfigError;
use super::keys::{KEYS, Kind};
use super::policies::PolicySetting;
use super::slips;
use super::users::UserSetting;
use super::vhost_limits::VhostLimitSetting;
use crate::size::Size;
use serde::Deserialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Settings as somebody typed them; `None` where nothing was said. See [`KEYS`] for their meaning.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "each is a key, and keys are documented once, in KEYS")]
pub struct Layer {
    pub data_dir: Option<PathBuf>,
    pub in_memory: Option<bool>,
    pub amqp: Option<Vec<String>>,
    pub amqps: Option<Vec<String>>,
    pub http: Option<String>,
    pub memory_budget: Option<Size>,
    pub durability: Option<String>,
    pub log_cap: Option<Size>,
    pub salvage: Option<bool>,
    pub users: Option<Vec<UserSetting>>,
    pub vhosts: Option<Vec<String>>,
    pub trace_vhosts: Option<Vec<String>>,
    pub vhost_limits: Option<Vec<VhostLimitSetting>>,
    pub policies: Option<Vec<PolicySetting>>,
    pub loopback_users: Option<Vec<String>>,
    pub channel_max: Option<u16>,
    pub frame_max: Option<Size>,
    pub heartbeat_s: Option<u16>,
    pub handshake_timeout_ms: Option<u64>,
    pub ack_timeout_ms: Option<u32>,
    pub message_max: Option<Size>,
    pub connections_max: Option<usize>,
    pub log_format: Option<String>,
    pub log_level: Option<String>,
    pub drain_timeout_ms: Option<u64>,
}

impl Layer {
    /// Reads a TOML file.
    ///
    /// # Errors
    /// Unreadable, not TOML, an unknown key, or a value of the wrong type.
    pub fn from_file(path: &Path) -> Result<Layer, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
        Layer::from_toml(&path.display().to_string(), &text)
    }

    /// Reads TOML; `origin` is what errors call it.
    ///
    /// # Errors
    /// Not TOML, an unknown key, or a value of the wrong type.
    pub fn from_toml(origin: &str, text: &str) -> Result<Layer, ConfigError> {
        toml::from_str(text).map_err(|error| {
            let start = error.span().map(|span| span.start.min(text.len()));
            let line = start.map(|start| text[..start].matches('\n').count() + 1);
            let (key, what) = slips::told(text, start, error.message());
            ConfigError::Syntax { origin: origin.to_owned(), line, key, what }
        })
    }

    /// Reads the variables `FOREBAY_<KEY>`; `variable` looks one up (`std::env::var_os` in a program).
    ///
    /// Lists are separated by commas; a comma alone is an empty list. Lists of tables can be set in a file only.
    ///
    /// # Errors
    /// No value, one of the wrong type, or one that is not UTF-8 and no path; the message names the variable.
    pub fn from_env(variable: impl Fn(&str) -> Option<OsString>) -> Result<Layer, ConfigError> {
        let mut table = toml::Table::new();
        let mut data_dir = None;
        for key in KEYS.iter().filter(|key| key.kind != Kind::Tables) {
            let name = key.variable();
            let Some(value) = variable(&name) else { continue };
            let error = |what: String| ConfigError::Syntax {
                origin: name.clone(),
                line: None,
                key: None,
                what,
            };
            if value.is_empty() {
                // Some would take it for the default, and some for nothing at all: no listener, or nobody from this machine alone.
                let cure = if key.name == "http" { ", or write off for none" } else { "" };
                return Err(error(format!("it is empty: unset it for the default{cure}")));
            }
            if key.name == "data_dir" {
                data_dir = Some(PathBuf::from(value));
                continue;
            }
            let text = value.into_string().map_err(|_| error("it is not UTF-8".to_owned()))?;
            let value = match key.kind {
                Kind::Tables => continue,
                Kind::Text | Kind::Size => toml::Value::String(text),
                Kind::List => toml::Value::Array(
                    text.split(',')
                        .map(str::trim)
                        .filter(|part| !part.is_empty())
                        .map(|part| toml::Value::String(part.to_owned()))
                        .collect(),
                ),
                Kind::Number => toml::Value::Integer(
                    text.trim().parse().map_err(|_| error(format!("`{text}` is not a number")))?,
                ),
                Kind::Bool => toml::Value::Boolean(match text.trim() {
                    "true" | "1" => true,
                    "false" | "0" => false,
                    _ => return Err(error(format!("`{text}` is neither true nor false"))),
                }),
            };
            let one: toml::Table = [(key.name.to_owned(), value.clone())].into_iter().collect();
            Layer::deserialize(one).map_err(|e| error(slips::in_words(e.message())))?;
            table.insert(key.name.to_owned(), value);
        }
        let layer = Layer::deserialize(table).map_err(|e| ConfigError::Syntax {
            origin: "the environment".to_owned(),
            line: None,
            key: None,
            what: e.message().to_owned(),
        })?;
        Ok(Layer { data_dir, ..layer })
    }

    /// Those of `names` that begin like our variables and set nothing: most likely a slip of the hand.
    pub fn unknown_variables(names: impl IntoIterator<Item = String>) -> Vec<String> {
        let ours = names.into_iter().filter(|name| name.starts_with("FOREBAY_"));
        let sets =
            |name: &str| KEYS.iter().any(|key| key.kind != Kind::Tables && key.variable() == name);
        ours.filter(|name| !sets(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use std::os::unix::ffi::OsStringExt;

    fn env(pairs: &[(&str, &str)]) -> Result<Layer, ConfigError> {
        let map: BTreeMap<_, _> = pairs.iter().copied().collect();
        Layer::from_env(|name| map.get(name).map(OsString::from))
    }

    #[test]
    fn variables_carry_every_scalar_and_lists_with_commas() {
        let layer = env(&[
            ("FOREBAY_AMQP", "127.0.0.1:1, 127.0.0.1:2"),
            ("FOREBAY_IN_MEMORY", "true"),
            ("FOREBAY_MEMORY_BUDGET", "1GiB"),
            ("FOREBAY_HEARTBEAT_S", "7"),
        ])
        .unwrap();
        assert_eq!(layer.amqp.unwrap(), ["127.0.0.1:1", "127.0.0.1:2"]);
        assert_eq!(layer.in_memory, Some(true));
        assert_eq!(layer.memory_budget, Some(Size(1 << 30)));
        assert_eq!(layer.heartbeat_s, Some(7));
        assert!(layer.data_dir.is_none());
    }

    #[test]
    fn a_bad_variable_is_named() {
        for (name, value) in [
            ("FOREBAY_HEARTBEAT_S", "soon"),
            ("FOREBAY_HEARTBEAT_S", "70000"),
            ("FOREBAY_IN_MEMORY", "maybe"),
            ("FOREBAY_LOG_CAP", "much"),
        ] {
            let text = env(&[(name, value)]).unwrap_err().to_string();
            assert!(text.starts_with(name), "{text}");
        }
    }

    #[test]
    fn an_empty_variable_is_neither_a_default_nor_nothing() {
        for key in KEYS.iter().filter(|key| key.kind != Kind::Tables) {
            let name = key.variable();
            let said = env(&[(&name, "")]).unwrap_err().to_string();
            assert!(said.starts_with(&format!("{name}: it is empty: unset it")), "{said}");
            assert_eq!(said.ends_with(", or write off for none"), key.name == "http", "{said}");
        }
        let layer = env(&[("FOREBAY_LOOPBACK_USERS", ","), ("FOREBAY_HTTP", "off")]).unwrap();
        assert_eq!(layer.loopback_users.as_deref(), Some(&[][..]));
        assert_eq!(layer.http.as_deref(), Some("off"));
    }

    #[test]
    fn a_variable_that_is_not_utf_8_is_a_path_or_named() {
        let odd = || OsString::from_vec(b"/data/\xff".to_vec());
        let only = |it: &'static str| Layer::from_env(move |name| (name == it).then(odd));
        assert_eq!(only("FOREBAY_DATA_DIR").unwrap().data_dir, Some(PathBuf::from(odd())));
        for name in
            ["FOREBAY_AMQP", "FOREBAY_DURABILITY", "FOREBAY_HEARTBEAT_S", "FOREBAY_IN_MEMORY"]
        {
            assert_eq!(only(name).unwrap_err().to_string(), format!("{name}: it is not UTF-8"));
        }
    }

    #[test]
    fn an_unknown_key_and_a_wrong_type_are_named_with_their_line() {
        let error = |text| Layer::from_toml("f.toml", text).unwrap_err().to_string();
        let text = error("heartbeat_s = 5\nheartbeet = 6\n");
        assert!(text.starts_with("f.toml line 2") && text.contains("heartbeet"), "{text}");
        let text = error("channel_max = \"many\"");
        assert!(text.starts_with("f.toml line 1, channel_max: "), "{text}");
        let text = error("memory_budget = \"lots\"");
        assert!(text.contains("memory_budget") && text.contains("lots"), "{text}");
        assert!(!error("a = [").contains('\n'));
        let text = error("heartbeat_s = -1");
        assert!(text.ends_with("expected a number from 0 to 65535"), "{text}");
        assert_eq!(error("\namqp = \"[::1]:0\""), "f.toml line 2: amqp is a list: [\"[::1]:0\"]");
    }

    #[test]
    fn a_password_is_never_in_an_error() {
        let error = |text: &str| Layer::from_toml("f.toml", text).unwrap_err().to_string();
        let no_text =
            |key: &str| format!("f.toml line 3, {key}: invalid type: integer, expected a string");
        for key in ["password", "password_hash"] {
            let table = format!("[[users]]\nname = \"a\"\n{key} = 4711");
            assert_eq!(error(&table), no_text(key));
            let inline = format!("\n\nusers = [{{ name = \"a=b, 1\", {key} = 4711 }}]");
            assert_eq!(error(&inline), no_text(key));
        }
        let list = "users is a list of tables, each below [[users]]";
        assert_eq!(error("users = \"app:4711\""), format!("f.toml line 1: {list}"));
        for text in [
            "users = [\"app:4711\"]",
            "users = [\n  \"app=4711\",\n]",
            "users = [\n  \"4711=app\",\n]",
            "users = [\"a, expected 4711\"]",
            "users = 4711",
            "[[users]]\npassword = [\"4711\"]",
            "[[users]]\npassword = 4711.5",
            "[[users]]\npassword = 4711-01-01",
            "[[users]]\npassword = 4711x",
            "[[users]]\npassword = x4711",
            "[[users]]\npassword = \"4711",
            "[[users]]\npassword = '4711\n",
            "[[users]]\npassword = \"\\x4711\"",
            "[[users]]\npassword = \"x\"\npassword = \"4711\"",
            "[[users]]\npassword 4711",
            "[users]\napp = 4711",
            "users.app.password = \"4711\"",
            "[[users]]\r\npassword =\r\n4711",
        ] {
            let said = error(text);
            assert!(!said.contains("4711") && said.contains(" line "), "{text}: {said}");
        }
    }

    #[test]
    fn variables_that_set_nothing_are_found() {
        let names = ["FOREBAY_HTTP", "FOREBAY_MEMORY_BUGDET", "FOREBAY_USERS", "PATH"];
        let unknown = Layer::unknown_variables(names.map(str::to_owned));
        assert_eq!(unknown, ["FOREBAY_MEMORY_BUGDET", "FOREBAY_USERS"]);
    }
}
