//! Users: a name, a password, tags, and permissions per virtual host.

use std::fmt;
use std::sync::Arc;

use super::password::Password;
use super::permissions::Permissions;
use super::sasl::{SaslError, read_response};
use crate::notices::shown;

/// Somebody who may log in.
#[derive(Clone, Debug)]
pub struct User {
    /// What they are called.
    pub name: String,
    /// What they prove it with.
    pub password: Password,
    /// RabbitMQ's tags: `administrator`, `monitoring`, `impersonator` and others.
    pub tags: Vec<String>,
    /// May log in over the loopback interface only. True for `guest` unless configured.
    pub loopback_only: bool,
    /// Virtual hosts they may open, and what they may do there.
    vhosts: Vec<(String, Arc<Permissions>)>,
}

/// Why a login failed. The client is told less than the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoginError {
    /// The mechanism was not offered.
    UnknownMechanism,
    /// The response does not have the mechanism's form.
    Malformed,
    /// There is no such user.
    NoSuchUser,
    /// It has another password.
    WrongPassword,
    /// It came with an empty one, which is none, whatever the user's is: so it is with RabbitMQ.
    NoPassword,
    /// It may come over the loopback only.
    NotFromThere,
}

impl fmt::Display for LoginError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LoginError::UnknownMechanism => "the login mechanism is not offered",
            LoginError::Malformed => "the login response cannot be read",
            LoginError::NoSuchUser => "there is no such user",
            LoginError::WrongPassword => "the password is another one",
            LoginError::NoPassword => "there is no password, and nobody is let in without",
            LoginError::NotFromThere => "this user may only connect via localhost",
        })
    }
}

impl std::error::Error for LoginError {}

impl User {
    /// A user without tags who may not open any virtual host yet.
    pub fn new(name: impl Into<String>, password: Password) -> Self {
        let name = name.into();
        let loopback_only = name == "guest";
        User { name, password, tags: Vec::new(), loopback_only, vhosts: Vec::new() }
    }

    /// RabbitMQ's first user: `guest` with the password `guest`, an administrator who may do
    /// everything in `/`, over the loopback interface only.
    pub fn guest() -> Self {
        User::new("guest", Password::Plain("guest".to_owned()))
            .with_tag("administrator")
            .with_permissions("/", Permissions::all())
    }

    /// Adds a tag.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> Self {
        self.tags.push(tag.into());
        self
    }

    /// Sets the permissions in a virtual host.
    #[must_use]
    pub fn with_permissions(mut self, vhost: impl Into<String>, permissions: Permissions) -> Self {
        let vhost = vhost.into();
        self.vhosts.retain(|(each, _)| *each != vhost);
        self.vhosts.push((vhost, Arc::new(permissions)));
        self
    }

    /// Whether the user has this tag.
    pub fn has_tag(&self, tag: &str) -> bool {
        self.tags.iter().any(|each| each == tag)
    }

    /// What the user may do in this virtual host; `None` if they may not even open it.
    pub fn permissions(&self, vhost: &str) -> Option<Arc<Permissions>> {
        self.vhosts
            .iter()
            .find(|(each, _)| each == vhost)
            .map(|(_, permissions)| Arc::clone(permissions))
    }
}

/// Finds the user that a response of `start-ok` proves. `loopback` tells whether the connection
/// comes over the loopback interface.
pub fn authenticate<'u>(
    users: &'u [User],
    mechanism: &[u8],
    response: &[u8],
    loopback: bool,
) -> Result<&'u User, LoginError> {
    let credentials = read_response(mechanism, response).map_err(|error| match error {
        SaslError::UnknownMechanism => LoginError::UnknownMechanism,
        SaslError::Malformed => LoginError::Malformed,
    })?;
    let Some(user) = users.iter().find(|user| user.name.as_bytes() == credentials.name) else {
        // As slow as for a user that exists, so that time does not tell names.
        let nobody = Password::Plain(String::new());
        std::hint::black_box(nobody.matches(credentials.password));
        return Err(LoginError::NoSuchUser);
    };
    match user.password.matches(credentials.password) {
        _ if credentials.password.is_empty() => Err(LoginError::NoPassword),
        false => Err(LoginError::WrongPassword),
        true if user.loopback_only && !loopback => Err(LoginError::NotFromThere),
        true => Ok(user),
    }
}

/// Who somebody says he is, as it may stand in a log; empty if he says nothing that can be read.
pub fn claimed_name(mechanism: &[u8], response: &[u8]) -> String {
    read_response(mechanism, response)
        .map_or_else(|_| String::new(), |credentials| shown(credentials.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Access;
    use crate::topology::Resource;

    fn users() -> Vec<User> {
        let app = User::new("app", Password::salted(b"hunter2", *b"salt"))
            .with_tag("impersonator")
            .with_permissions("dev", Permissions::new("", "", ".*").unwrap());
        vec![User::guest(), app]
    }

    fn login(response: &[u8], loopback: bool) -> Result<String, LoginError> {
        authenticate(&users(), b"PLAIN", response, loopback).map(|user| user.name.clone())
    }

    #[test]
    fn guest_comes_over_loopback_only() {
        assert_eq!(login(b"\0guest\0guest", true), Ok("guest".to_owned()));
        assert_eq!(login(b"\0guest\0guest", false), Err(LoginError::NotFromThere));
        let mut anywhere = users();
        anywhere[0].loopback_only = false;
        assert!(authenticate(&anywhere, b"PLAIN", b"\0guest\0guest", false).is_ok());
    }

    #[test]
    fn other_users_come_from_anywhere_with_their_password() {
        assert_eq!(login(b"\0app\0hunter2", false), Ok("app".to_owned()));
        assert_eq!(login(b"\0app\0hunter3", false), Err(LoginError::WrongPassword));
        assert_eq!(login(b"\0nobody\0", true), Err(LoginError::NoSuchUser));
        assert_eq!(claimed_name(b"PLAIN", b"\0nobody\0secret"), "nobody");
        assert_eq!(login(b"garbage", true), Err(LoginError::Malformed));
        assert_eq!(
            authenticate(&users(), b"EXTERNAL", b"", true).err(),
            Some(LoginError::UnknownMechanism)
        );
    }

    #[test]
    fn nobody_comes_without_a_password() {
        for password in [Password::Plain(String::new()), Password::salted(b"", *b"salt")] {
            let users = [User::new("app", password)];
            let login = |response: &[u8]| authenticate(&users, b"PLAIN", response, true).err();
            assert_eq!(login(b"\0app\0"), Some(LoginError::NoPassword));
            assert_eq!(login(b"\0app\0x"), Some(LoginError::WrongPassword));
        }
        assert_eq!(login(b"\0guest\0", true), Err(LoginError::NoPassword));
    }

    #[test]
    fn permissions_are_per_virtual_host() {
        let users = users();
        let app = &users[1];
        assert!(app.permissions("/").is_none());
        let dev = app.permissions("dev").unwrap();
        assert!(dev.allow(Access::Read, Resource::queue(b"q", "dev")));
        assert!(!dev.allow(Access::Write, Resource::queue(b"q", "dev")));
        assert!(app.has_tag("impersonator") && !app.has_tag("administrator"));
        let replaced = app.clone().with_permissions("dev", Permissions::all());
        let dev = replaced.permissions("dev").unwrap();
        assert!(dev.allow(Access::Write, Resource::queue(b"q", "dev")));
    }
}
