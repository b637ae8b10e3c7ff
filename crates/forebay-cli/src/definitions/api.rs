//! The part of RabbitMQ's management API that definitions need.

use std::fmt::Write as _;

use serde_json::Value;

use crate::http::{Endpoint, Patience};

/// A broker that works tells soon what it has, and goes on until it has told all.
const EXPORT_PATIENCE: Patience = Patience::Silence(30);
/// It answers when the last of many declarations is synced, and says nothing until then.
const IMPORT_PATIENCE: Patience = Patience::Silence(600);

/// A broker's definitions, over HTTP.
#[derive(Debug)]
pub(super) struct Api(pub(super) Endpoint);

/// What became of an import.
pub(super) struct Imported {
    /// How much is there now; RabbitMQ does not count.
    pub(super) declared: Option<u64>,
    /// A sentence each.
    pub(super) refused: Vec<String>,
}

impl Api {
    /// A broker's definitions, or those of one virtual host.
    pub(super) fn export(&self, vhost: Option<&str>) -> Result<Value, String> {
        let (code, body) = self.0.get(&path(vhost), EXPORT_PATIENCE)?;
        match code {
            200 => serde_json::from_slice(&body).map_err(|error| {
                format!("{} does not answer with definitions: {error}", self.0.base())
            }),
            _ => Err(self.0.refusal(code, &body)),
        }
    }

    /// Declares what is in a document.
    pub(super) fn import(&self, vhost: Option<&str>, document: &Value) -> Result<Imported, String> {
        let (code, body) = self.0.post(&path(vhost), document, IMPORT_PATIENCE)?;
        let answer: Value = serde_json::from_slice(&body).unwrap_or_default();
        let declared = answer["declared"].as_u64();
        match (code, answer["refused"].as_array()) {
            (200..300, _) => Ok(Imported { declared, refused: Vec::new() }),
            (_, Some(refused)) => {
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let sentence =
                    |each: &Value| format!("{}: {}", text(&each["what"]), text(&each["reason"]));
                Ok(Imported { declared, refused: refused.iter().map(sentence).collect() })
            }
            _ => Err(self.0.refusal(code, &body)),
        }
    }
}

fn path(vhost: Option<&str>) -> String {
    let mut path = "/api/definitions".to_owned();
    if let Some(vhost) = vhost {
        path.push('/');
        for byte in vhost.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                path.push(char::from(byte));
            } else {
                let _ = write!(path, "%{byte:02X}");
            }
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_virtual_host_is_one_step_of_the_path() {
        assert_eq!(path(None), "/api/definitions");
        assert_eq!(path(Some("/")), "/api/definitions/%2F");
    }
}
