//! Users and what they may do, as configured.

use super::error::ConfigError;
use forebay_broker::access::{Password, PatternError, Permissions, User};
use serde::Deserialize;
use std::fmt;

/// A user who may log in.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserSetting {
    /// Login name.
    pub name: String,
    /// The password itself. Exactly one of this and `password_hash` is set.
    pub password: Option<String>,
    /// Base64 of a 4-byte salt and SHA-256 of salt and password: RabbitMQ's `password_hash`.
    pub password_hash: Option<String>,
    /// RabbitMQ's tags; `impersonator` may publish with the user id of others, `administrator` too.
    #[serde(default)]
    pub tags: Vec<String>,
    /// What the user may do, per virtual host; nothing listed means no access anywhere.
    #[serde(default)]
    pub permissions: Vec<PermissionSetting>,
    /// Which routing keys the user may use at topic exchanges; an exchange that is not listed is not
    /// limited.
    #[serde(default)]
    pub topic_permissions: Vec<TopicPermissionSetting>,
}

/// A password as configured.
#[derive(Clone, Copy)]
pub enum PasswordSetting<'a> {
    /// In the clear.
    Plain(&'a str),
    /// Salted and hashed, see [`UserSetting::password_hash`].
    Hash(&'a str),
}

/// What a user may do in one virtual host. The patterns are regular expressions over names of
/// exchanges and queues, matching anywhere in the name unless anchored; an empty one matches nothing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionSetting {
    /// Virtual host.
    pub vhost: String,
    /// What may be declared and deleted.
    pub configure: String,
    /// What may be published to and bound to.
    pub write: String,
    /// What may be consumed from and bound from.
    pub read: String,
}

/// Which routing keys a user may use at one topic exchange. The patterns are those of
/// [`PermissionSetting`]; `{username}` and `{vhost}` in them stand for the names.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TopicPermissionSetting {
    /// Virtual host.
    pub vhost: String,
    /// Name of the exchange; while it is not a topic exchange the entry means nothing.
    pub exchange: String,
    /// Keys that may be published with.
    pub write: String,
    /// Keys that may be bound with.
    pub read: String,
}

impl UserSetting {
    /// `guest` with the password `guest`, who may do everything in `/`.
    pub fn guest() -> UserSetting {
        let guest = UserSetting::with_password("guest", "guest", "/");
        UserSetting { tags: vec!["administrator".to_owned()], ..guest }
    }

    /// A user who may do everything in `vhost`.
    pub fn with_password(name: &str, password: &str, vhost: &str) -> UserSetting {
        UserSetting {
            name: name.to_owned(),
            password: Some(password.to_owned()),
            password_hash: None,
            tags: Vec::new(),
            permissions: vec![PermissionSetting {
                vhost: vhost.to_owned(),
                configure: ".*".to_owned(),
                write: ".*".to_owned(),
                read: ".*".to_owned(),
            }],
            topic_permissions: Vec::new(),
        }
    }

    /// The password; `None` when not exactly one form is set, which a checked configuration excludes.
    pub fn password(&self) -> Option<PasswordSetting<'_>> {
        match (&self.password, &self.password_hash) {
            (Some(plain), None) => Some(PasswordSetting::Plain(plain)),
            (None, Some(hash)) => Some(PasswordSetting::Hash(hash)),
            _ => None,
        }
    }
}

impl UserSetting {
    /// As the broker has it, but for where the user may come from.
    ///
    /// # Errors
    /// What is wrong about it: its name, and a password or a pattern that is none.
    pub fn user(&self) -> Result<User, String> {
        let name = &self.name;
        let password = match self.password() {
            Some(PasswordSetting::Plain(plain)) => Password::Plain(plain.to_owned()),
            Some(PasswordSetting::Hash(hash)) => {
                Password::from_base64_hash(hash).map_err(|error| format!("`{name}`: {error}"))?
            }
            None => {
                return Err(format!("`{name}` needs exactly one of password and password_hash"));
            }
        };
        let mut user = User::new(name, password);
        user.tags.clone_from(&self.tags);
        for allowed in &self.permissions {
            let vhost = &allowed.vhost;
            let unusable = |error: PatternError| format!("`{name}` in `{vhost}`: {error}");
            let mut permissions =
                Permissions::new(&allowed.configure, &allowed.write, &allowed.read)
                    .map_err(unusable)?;
            for topic in self.topic_permissions.iter().filter(|topic| topic.vhost == *vhost) {
                let patterns = (&*topic.write, &*topic.read);
                permissions
                    .topics
                    .limit(&topic.exchange, patterns, name, vhost)
                    .map_err(unusable)?;
            }
            user = user.with_permissions(vhost, permissions);
        }
        Ok(user)
    }
}

impl fmt::Debug for UserSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserSetting")
            .field("name", &self.name)
            .field("permissions", &self.permissions)
            .field("topic_permissions", &self.topic_permissions)
            .finish_non_exhaustive()
    }
}

/// Tags that let a user do something here.
const TAGS: [&str; 3] = ["administrator", "monitoring", "impersonator"];

/// RabbitMQ's other tags: who comes from there has them, and knows what they mean.
const TAGS_OF_RABBITMQ: [&str; 2] = ["management", "policymaker"];

/// A sentence for each tag that is perhaps a slip of the hand.
pub(super) fn tags_that_open_nothing(users: &[UserSetting]) -> Vec<String> {
    let mut sentences = Vec::new();
    for user in users {
        for tag in &user.tags {
            if TAGS.contains(&tag.as_str()) || TAGS_OF_RABBITMQ.contains(&tag.as_str()) {
                continue;
            }
            let short = tag.to_ascii_lowercase();
            let meant = TAGS.iter().find(|known| !short.is_empty() && known.starts_with(&short));
            let cure = match meant {
                Some(known) => format!("is `{known}` meant?"),
                None => format!("those that do are {}", TAGS.join(", ")),
            };
            let name = &user.name;
            sentences
                .push(format!("users: `{name}` has the tag `{tag}`, which opens nothing; {cure}"));
        }
    }
    sentences
}

/// Whether all users can be what they claim.
pub(super) fn check(
    users: &[UserSetting],
    vhosts: &[String],
    loopback_users: &[String],
) -> Result<(), ConfigError> {
    let error = |what: String| Err(ConfigError::value("users", what));
    if users.is_empty() {
        return error(
            "nobody could log in: give one, or leave the key out, and guest is there".to_owned(),
        );
    }
    for (index, user) in users.iter().enumerate() {
        let name = &user.name;
        if name.is_empty() || name.len() > 255 {
            return error("a name must have 1 to 255 bytes".to_owned());
        }
        if users[..index].iter().any(|other| other.name == *name) {
            return error(format!("`{name}` is there twice"));
        }
        if let Err(what) = user.user() {
            return error(what);
        }
        if user.password.as_deref() == Some("") {
            return error(format!("`{name}` has an empty password, with which nobody is let in"));
        }
        for (index, PermissionSetting { vhost, .. }) in user.permissions.iter().enumerate() {
            if !vhosts.contains(vhost) {
                return error(format!("`{name}` has permissions in `{vhost}`, not one of vhosts"));
            }
            if user.permissions[..index].iter().any(|other| other.vhost == *vhost) {
                return error(format!("`{name}` has permissions in `{vhost}` twice"));
            }
        }
        for (index, topic) in user.topic_permissions.iter().enumerate() {
            let TopicPermissionSetting { vhost, exchange, .. } = topic;
            if !user.permissions.iter().any(|permission| permission.vhost == *vhost) {
                return error(format!(
                    "`{name}` has topic_permissions in `{vhost}`, where it has no permissions"
                ));
            }
            if exchange.is_empty() {
                return error(format!(
                    "`{name}` has topic_permissions for an exchange without a name; the default \
                     exchange is not a topic exchange"
                ));
            }
            let same = |other: &TopicPermissionSetting| {
                other.vhost == *vhost && other.exchange == *exchange
            };
            if user.topic_permissions[..index].iter().any(same) {
                return error(format!(
                    "`{name}` has topic_permissions for `{exchange}` in `{vhost}` twice"
                ));
            }
        }
    }
    // `guest` is in the default of loopback_users and need not be in a list of one's own users.
    let unknown = loopback_users
        .iter()
        .find(|name| *name != "guest" && !users.iter().any(|user| user.name == **name));
    match unknown {
        Some(name) => {
            Err(ConfigError::value("loopback_users", format!("there is no user `{name}`")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, Layer};

    fn read(text: &str) -> Result<Config, String> {
        Layer::from_toml("f.toml", text)
            .and_then(|layer| Config::from_layers(&[layer]))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_list_of_users_that_is_empty_lets_nobody_in_and_is_refused() {
        let refused = read("users = []").unwrap_err();
        assert!(refused.contains("key users: nobody could log in"), "{refused}");
        assert_eq!(read("").unwrap().users.len(), 1);
    }

    #[test]
    fn users_have_passwords_and_permissions() {
        let config = read(
            r#"
            vhosts = ["/", "shop"]
            [[users]]
            name = "app"
            password = "secret"
            [[users.permissions]]
            vhost = "shop"
            configure = ""
            write = "orders.*"
            read = ".*"
            "#,
        )
        .unwrap();
        assert_eq!(config.users[0].permissions[0].vhost, "shop");
        assert!(!format!("{:?}", config.users).contains("secret"));
    }

    #[test]
    fn users_have_topic_permissions_beside_the_others() {
        let config = read(
            r#"
            [[users]]
            name = "app"
            password = "secret"
            permissions = [{ vhost = "/", configure = "", write = ".*", read = ".*" }]
            topic_permissions = [
              { vhost = "/", exchange = "amq.topic", write = "^{username}", read = ".*" },
            ]
            "#,
        )
        .unwrap();
        let topic = &config.users[0].topic_permissions[0];
        assert_eq!((&*topic.exchange, &*topic.write), ("amq.topic", "^{username}"));
    }

    #[test]
    fn topic_permissions_that_cannot_be_are_named() {
        let check = |topics: &str, part: &str| {
            let text = read(&format!(
                "[[users]]\nname = \"a\"\npassword = \"x\"\npermissions = [{{ vhost = \"/\", \
                 configure = \"\", write = \"\", read = \"\" }}]\ntopic_permissions = [{topics}]"
            ))
            .unwrap_err();
            assert!(text.contains(part), "{text}");
        };
        let topic = |vhost: &str, exchange: &str| {
            format!("{{vhost=\"{vhost}\", exchange=\"{exchange}\", write=\"\", read=\"\"}}")
        };
        check(&topic("v", "x"), "topic_permissions in `v`, where it has no permissions");
        check(&topic("/", ""), "an exchange without a name");
        check(&format!("{0}, {0}", topic("/", "x")), "`x` in `/` twice");
        check("{vhost=\"/\", exchange=\"x\", configure=\"\"}", "configure");
    }

    #[test]
    fn what_cannot_be_is_named() {
        let check = |toml: &str, part: &str| {
            let text = read(toml).unwrap_err();
            assert!(text.contains(part), "{text}");
        };
        check("[[users]]\nname = \"a\"", "`a` needs exactly one of password");
        check("[[users]]\nname = \"a\"\npassword = \"x\"\npassword_hash = \"y\"", "exactly one");
        check("[[users]]\nname = \"a\"\npassword = \"x\"\nrole = \"y\"", "role");
        check("[[users]]\nname = \"a\"\npassword = \"\"", "`a` has an empty password, with");
        check(
            "[[users]]\nname=\"a\"\npassword=\"x\"\n[[users]]\nname=\"a\"\npassword=\"x\"",
            "twice",
        );
        check(
            "[[users]]\nname=\"a\"\npassword=\"x\"\npermissions = [{vhost=\"v\", configure=\"\", \
             write=\"\", read=\"\"}]",
            "`v`",
        );
        let permission = "{vhost=\"/\", configure=\"\", write=\"\", read=\"\"}";
        check(
            &format!(
                "[[users]]\nname=\"a\"\npassword=\"x\"\npermissions = [{permission}, {permission}]"
            ),
            "`a` has permissions in `/` twice",
        );
        let looks_around = permission.replace("write=\"", "write=\"(?=x).*");
        check(
            &format!("[[users]]\nname=\"a\"\npassword=\"x\"\npermissions = [{looks_around}]"),
            "`a` in `/`: permission pattern '(?=x).*' is not usable: ",
        );
        check("users = [{ name = \"a\", password_hash = \"?\" }]", "users: `a`: ");
        check("loopback_users = [\"nobody\"]", "nobody");
    }

    #[test]
    fn a_tag_that_opens_nothing_is_doubted_and_one_of_rabbitmq_is_not() {
        let of = |tags: &str| {
            let users = format!("users = [{{ name = \"a\", password = \"x\", tags = [{tags}] }}]");
            read(&users).unwrap().doubts()
        };
        let opens_nothing =
            |tag: &str| format!("users: `a` has the tag `{tag}`, which opens nothing; ");
        assert_eq!(
            of("\"administrator\", \"monitoring\", \"impersonator\", \"policymaker\""),
            [""; 0]
        );
        assert_eq!(of("\"admin\""), [opens_nothing("admin") + "is `administrator` meant?"]);
        assert_eq!(of("\"Monitoring\""), [opens_nothing("Monitoring") + "is `monitoring` meant?"]);
        let doubts = of("\"ops\"");
        assert_eq!(
            doubts,
            [opens_nothing("ops") + "those that do are administrator, monitoring, impersonator"]
        );
    }
}
