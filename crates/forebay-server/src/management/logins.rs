//! Who asks, by name and password; and who was refused, for the log.

use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use forebay_broker::Notice;
use forebay_broker::access::{User, authenticate, base64, claimed_name};

use crate::telling::Telling;

/// Refusals told at once, before they become rare.
const TOLD_AT_ONCE: u64 = 64;

/// Why somebody is not answered, as he is told.
pub(super) struct Refused(pub(super) String);

/// The users, and what of their logins the log was told.
pub(super) struct Logins {
    users: Vec<User>,
    began: Instant,
    refusals: Mutex<Telling>,
}

impl Logins {
    pub(super) fn new(users: Vec<User>) -> Logins {
        Logins { users, began: Instant::now(), refusals: Mutex::new(Telling::new(TOLD_AT_ONCE)) }
    }

    /// Name and password of who asks, if he has one of some tags.
    pub(super) fn login(
        &self,
        authorization: Option<&str>,
        peer: SocketAddr,
        tags: &[&str],
    ) -> Result<(String, String), Refused> {
        let credentials = authorization
            .and_then(|value| value.split_once(' '))
            // Its name is of any case: RFC 9110, section 11.1.
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("basic"))
            .and_then(|(_, value)| base64::decode(value))
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let Some((name, password)) = credentials.as_deref().and_then(|text| text.split_once(':'))
        else {
            let how = "log in with a user's name and password (basic authentication)";
            return Err(Refused(how.to_owned()));
        };
        // On a listener for both families an IPv4 peer has an IPv6 address.
        let loopback = peer.ip().to_canonical().is_loopback();
        let response = format!("\0{name}\0{password}");
        match authenticate(&self.users, b"PLAIN", response.as_bytes(), loopback) {
            Ok(user) if tags.iter().any(|tag| user.has_tag(tag)) => {
                Ok((name.to_owned(), password.to_owned()))
            }
            Ok(_) => Err(Refused(format!("the user has not the tag {}", tags.join(" or ")))),
            Err(why) => {
                let user = claimed_name(b"PLAIN", response.as_bytes());
                let address = peer.to_string();
                self.tell(Notice::LoginRefused { address, user, why: why.to_string() });
                Err(Refused("login failed".to_owned()))
            }
        }
    }

    fn tell(&self, notice: Notice) {
        let now_us = self.began.elapsed().as_micros() as u64;
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        let told = refusals.told(now_us, notice);
        drop(refusals);
        for notice in told {
            tracing::warn!("{notice}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asks_from(address: &str, login: &str) -> Result<(String, String), Refused> {
        asks_with(address, &format!("Basic {}", base64::encode(login.as_bytes())))
    }

    fn asks_with(address: &str, authorization: &str) -> Result<(String, String), Refused> {
        let logins = Logins::new(vec![User::guest()]);
        logins.login(Some(authorization), address.parse().unwrap(), &["administrator"])
    }

    #[test]
    fn the_scheme_is_basic_in_any_case_and_no_other() {
        let login = base64::encode(b"guest:guest");
        for basic in ["Basic ", "basic ", "BASIC  "] {
            assert!(asks_with("127.0.0.1:5000", &format!("{basic}{login}")).is_ok(), "{basic}");
        }
        for other in ["", "Bearer ", "Basic", "Basic Basic "] {
            assert!(asks_with("127.0.0.1:5000", &format!("{other}{login}")).is_err(), "{other}");
        }
    }

    #[test]
    fn guest_comes_over_loopback_whatever_family_its_listener_has() {
        for here in ["127.0.0.1:5000", "[::1]:5000", "[::ffff:127.0.0.1]:5000"] {
            assert!(asks_from(here, "guest:guest").is_ok(), "{here}");
        }
        for there in ["10.0.0.1:5000", "[::ffff:10.0.0.1]:5000", "[2001:db8::1]:5000"] {
            assert!(asks_from(there, "guest:guest").is_err(), "{there}");
        }
    }
}
