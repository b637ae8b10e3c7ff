//! Who may log in, and what they may do.
//!
//! ```text
//!   start-ok ──► sasl: mechanism, response ──► users: name, password, place ──► User
//!   open     ──► User::permissions(vhost) ──► Permissions
//!   methods  ──► Permissions::check(Access, Resource) ──► Ok or 403
//!   keys     ──► TopicPermissions::check(Access, exchange, key) ──► Ok or 403
//! ```

pub mod base64;
mod password;
mod permissions;
mod sasl;
mod topics;
mod users;

pub use password::{Password, PasswordError};
pub use permissions::{Access, Pattern, PatternError, Permissions};
pub use sasl::{Credentials, MECHANISMS, SaslError, read_response};
pub use topics::TopicPermissions;
pub use users::{LoginError, User, authenticate, claimed_name};
