//! Passwords, plain or as RabbitMQ writes them in definitions.
//!
//! ```text
//!   base64 of   ┌──────────┬───────────────────────────────────┐
//!               │ salt 4 B │ sha256(salt, password)  32 bytes  │
//!               └──────────┴───────────────────────────────────┘
//! ```

use std::fmt;

use sha2::{Digest, Sha256};

use super::base64;

const SALT_BYTES: usize = 4;
const HASH_BYTES: usize = 32;

/// What a login's password is compared with.
#[derive(Clone, PartialEq, Eq)]
pub enum Password {
    /// The password itself.
    Plain(String),
    /// A salt and the hash of salt and password.
    SaltedSha256 {
        /// Chosen when the password was set.
        salt: [u8; SALT_BYTES],
        /// `sha256(salt, password)`.
        hash: [u8; HASH_BYTES],
    },
}

/// A password hash that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PasswordError {
    /// A character that base64 does not have, or padding in the wrong place.
    NotBase64,
    /// Not 36 bytes.
    Length {
        /// What it is, in bytes.
        found_bytes: usize,
    },
}

impl fmt::Display for PasswordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PasswordError::NotBase64 => write!(f, "the password hash is not base64"),
            PasswordError::Length { found_bytes } => write!(
                f,
                "the password hash has {found_bytes} bytes where {} are due (4 of salt, 32 of \
                 SHA-256)",
                SALT_BYTES + HASH_BYTES
            ),
        }
    }
}

impl std::error::Error for PasswordError {}

impl Password {
    /// Reads RabbitMQ's `password_hash` (algorithm `rabbit_password_hashing_sha256`).
    pub fn from_base64_hash(text: &str) -> Result<Self, PasswordError> {
        let bytes = base64::decode(text).ok_or(PasswordError::NotBase64)?;
        let length = PasswordError::Length { found_bytes: bytes.len() };
        let (salt, hash) = bytes.split_first_chunk().ok_or(length)?;
        let hash = hash.try_into().map_err(|_| length)?;
        Ok(Password::SaltedSha256 { salt: *salt, hash })
    }

    /// The hash as RabbitMQ's `password_hash`; `None` for a plain password, which has none yet.
    pub fn to_base64_hash(&self) -> Option<String> {
        match self {
            Password::Plain(_) => None,
            Password::SaltedSha256 { salt, hash } => {
                Some(base64::encode(&[&salt[..], &hash[..]].concat()))
            }
        }
    }

    /// Hashes a password with a salt of the caller's choice.
    pub fn salted(password: &[u8], salt: [u8; SALT_BYTES]) -> Self {
        Password::SaltedSha256 { salt, hash: salted_hash(salt, password) }
    }

    /// Whether it is this password, in a time that does not depend on where they differ.
    pub fn matches(&self, password: &[u8]) -> bool {
        match self {
            // Hashes have one length, so that the length does not show either.
            Password::Plain(plain) => same(
                &salted_hash([0; SALT_BYTES], plain.as_bytes()),
                &salted_hash([0; SALT_BYTES], password),
            ),
            Password::SaltedSha256 { salt, hash } => same(hash, &salted_hash(*salt, password)),
        }
    }
}

impl fmt::Debug for Password {
    /// Shows the kind, never the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Password::Plain(_) => "Plain(..)",
            Password::SaltedSha256 { .. } => "SaltedSha256(..)",
        })
    }
}

fn salted_hash(salt: [u8; SALT_BYTES], password: &[u8]) -> [u8; HASH_BYTES] {
    Sha256::new().chain_update(salt).chain_update(password).finalize().into()
}

fn same(a: &[u8; HASH_BYTES], b: &[u8; HASH_BYTES]) -> bool {
    let difference = a.iter().zip(b).fold(0, |all, (a, b)| std::hint::black_box(all | (a ^ b)));
    difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_that_rabbitmq_wrote_is_understood() {
        // From RabbitMQ's documentation on computing hashes: password `test12`, salt 908DC60A.
        let hash = "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR";
        let password = Password::from_base64_hash(hash).unwrap();
        assert!(password.matches(b"test12"));
        assert!(!password.matches(b"test13"));
        assert!(!password.matches(b""));
        assert_eq!(password, Password::salted(b"test12", [0x90, 0x8d, 0xc6, 0x0a]));
        assert_eq!(password.to_base64_hash().as_deref(), Some(hash));
    }

    #[test]
    fn plain_passwords_are_compared_whole() {
        let password = Password::Plain("guest".to_owned());
        assert!(password.matches(b"guest"));
        for other in [&b"gues"[..], b"guest2", b"Guest", b""] {
            assert!(!password.matches(other));
        }
        assert!(!Password::Plain(String::new()).matches(b"x"));
    }

    #[test]
    fn bad_hashes_say_what_is_wrong() {
        assert_eq!(Password::from_base64_hash("a"), Err(PasswordError::NotBase64));
        assert_eq!(Password::from_base64_hash("a?=="), Err(PasswordError::NotBase64));
        assert_eq!(Password::from_base64_hash("=AAA"), Err(PasswordError::NotBase64));
        assert_eq!(
            Password::from_base64_hash("AAAA"),
            Err(PasswordError::Length { found_bytes: 3 })
        );
        assert_eq!(
            Password::from_base64_hash("AAAAAA=="),
            Err(PasswordError::Length { found_bytes: 4 })
        );
    }

    #[test]
    fn secrets_do_not_show() {
        let shown = format!("{:?}", Password::Plain("secret".to_owned()));
        assert!(!shown.contains("secret"));
    }
}
