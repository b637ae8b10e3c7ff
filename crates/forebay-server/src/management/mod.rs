//! What is asked under `/api` and needs a login.
//!
//! `/api/forebay/overview` and `/api/forebay/waits` tell what the broker does and who waits for whom
//! ([`overview`]), `/api/queues/VHOST/NAME` the same of a queue ([`queue`]). `/api/definitions` is what is declared, in RabbitMQ's words, and declaring it again:
//!
//! ```text
//!   GET   ── slices by letter ──▶ shard          one slice a turn, see forebay-broker's listing.rs
//!   POST  ── declare, bind ─────▶ AMQP connection inside the process, as the user who asks
//! ```
//! An import is a client like any other: permissions, refusals and durability are those of AMQP, and its
//! answer comes after the last declaration is synced.
//!
//! [`REQUESTS_MAX`] are answered at a time, others are told to come back; nobody's body is read before a login.

mod declarer;
mod definitions;
mod json;
mod logins;
mod overview;
mod queue;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use forebay_broker::{ListCursor, Listed};
use serde_json::{Value, json};

use crate::config::Config;
use crate::http::{Method, NoBody, Request, Response};
use crate::mailbox::{Mail, Mailbox, Snapshot};
use crate::shard_setup;
use crate::start_error::StartError;
use declarer::Declarer;
use definitions::{Fixed, Wanted};
use logins::{Logins, Refused};

const PATH: &str = "/api/definitions";
/// Forebay's own.
const FOREBAY_PATH: &str = "/api/forebay";
/// One queue.
const QUEUES_PATH: &str = "/api/queues";
/// Users with one of these may look.
const WATCHERS: [&str; 2] = ["administrator", "monitoring"];
/// Largest body of a request, in bytes.
const DEFINITIONS_BYTES_MAX: usize = 16 << 20;
/// Requests at one time.
const REQUESTS_MAX: usize = 4;
/// How long the shard may take for a slice or a snapshot.
const SLICE_PATIENCE: Duration = Duration::from_secs(10);

/// What the configuration says, for those who ask.
pub(crate) struct Management {
    logins: Logins,
    fixed: Fixed,
}

/// The same with a way to the shard.
pub(crate) struct Over {
    management: Management,
    mailbox: Arc<Mailbox>,
    /// Requests that are being answered.
    busy: AtomicUsize,
}

impl Management {
    pub(crate) fn new(config: &Config) -> Result<Management, StartError> {
        Ok(Management {
            logins: Logins::new(shard_setup::users(config)?),
            fixed: Fixed::new(config),
        })
    }

    pub(crate) fn over(self, mailbox: Arc<Mailbox>) -> Arc<Over> {
        Arc::new(Over { management: self, mailbox, busy: AtomicUsize::new(0) })
    }
}

/// Whether a request is for this module.
pub(crate) fn is_for(path: &str) -> bool {
    let below = |prefix| {
        path.strip_prefix(prefix).is_some_and(|rest: &str| rest.is_empty() || rest.starts_with('/'))
    };
    [PATH, FOREBAY_PATH, QUEUES_PATH].into_iter().any(below)
}

struct Free<'a>(&'a Over);

impl Drop for Free<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A status code and a JSON body.
type Answer = (u16, Value);

fn error(error: &str, reason: impl Into<String>) -> Value {
    json!({ "error": error, "reason": reason.into() })
}

impl Over {
    /// Answers a request of [`is_for`].
    pub(crate) fn answer(&self, request: &mut Request<'_>) -> Response {
        let (code, body) = if self.busy.fetch_add(1, Ordering::AcqRel) < REQUESTS_MAX {
            let _free = Free(self);
            self.serve(request).unwrap_or_else(|refused| refused)
        } else {
            let _free = Free(self);
            let reason = "too many requests are being answered; try again";
            (503, error("service_unavailable", reason))
        };
        Response { code, content_type: "application/json", body: format!("{body}\n") }
    }

    fn serve(&self, request: &mut Request<'_>) -> Result<Answer, Answer> {
        let path = request.head.path.clone();
        if let Some(what) = path.strip_prefix(FOREBAY_PATH) {
            return self.watch(request, what.trim_matches('/'));
        }
        if let Some(which) = path.strip_prefix(QUEUES_PATH) {
            return self.look_at_queue(request, which.trim_start_matches('/'));
        }
        let (name, password) = self.login(request, &["administrator"])?;
        let rest = path.strip_prefix(PATH).unwrap_or_default().trim_matches('/');
        let vhost = if rest.is_empty() {
            None
        } else {
            let no_vhost = || (404, error("not_found", format!("there is no vhost `{rest}`")));
            let vhost = percent_decoded(rest).ok_or_else(no_vhost)?;
            if !self.management.fixed.has_vhost(&vhost) {
                return Err(no_vhost());
            }
            Some(vhost)
        };
        match request.head.method {
            Method::Get | Method::Head => {
                let listed = self.list()?;
                Ok((200, self.management.fixed.document(&listed, vhost.as_deref())))
            }
            Method::Post => {
                let document = read_body(request)?;
                let wanted = Wanted::read(&document, vhost.as_deref())
                    .map_err(|reason| (400, error("bad_request", reason)))?;
                Ok(self.declare(wanted, &name, &password))
            }
            _ => Err((405, error("method_not_allowed", "only GET and POST are answered here"))),
        }
    }

    /// Answers who wants to see what goes on.
    fn watch(&self, request: &Request<'_>, what: &str) -> Result<Answer, Answer> {
        self.login(request, &WATCHERS)?;
        if !matches!(request.head.method, Method::Get | Method::Head) {
            return Err((405, error("method_not_allowed", "only GET is answered here")));
        }
        let document = match what {
            "overview" => overview::overview,
            "waits" => overview::waits,
            _ => {
                let reason = "there is /api/forebay/overview and /api/forebay/waits";
                return Err((404, error("not_found", reason)));
            }
        };
        Ok((200, document(&self.snapshot()?)))
    }

    /// Answers who wants to see a queue: `VHOST/NAME`, percent-encoded.
    fn look_at_queue(&self, request: &Request<'_>, which: &str) -> Result<Answer, Answer> {
        self.login(request, &WATCHERS)?;
        if !matches!(request.head.method, Method::Get | Method::Head) {
            return Err((405, error("method_not_allowed", "only GET is answered here")));
        }
        let not_found = |reason: String| (404, error("not_found", reason));
        let named = which.split_once('/').and_then(|(vhost, name)| {
            percent_decoded(vhost).zip(percent_decoded(name)).filter(|(_, name)| !name.is_empty())
        });
        let (vhost, name) = named.ok_or_else(|| {
            not_found(
                "/api/queues/VHOST/NAME is one queue, %2F being the vhost `/`; /api/forebay/overview lists queues, \
                 /api/definitions tells what is declared"
                    .into(),
            )
        })?;
        let no_queue = || not_found(format!("there is no queue '{name}' in vhost '{vhost}'"));
        let (reply, report) = sync_channel(1);
        self.mailbox.post(Mail::Queue(vhost.clone(), name.clone(), reply));
        let report = report.recv_timeout(SLICE_PATIENCE);
        let report = report
            .map_err(|_| (503, error("service_unavailable", "the broker does not answer")))?
            .ok_or_else(no_queue)?;
        Ok((200, queue::queue(&report)))
    }

    fn snapshot(&self) -> Result<Snapshot, Answer> {
        let (reply, snapshot) = sync_channel(1);
        self.mailbox.post(Mail::Status(reply));
        snapshot
            .recv_timeout(SLICE_PATIENCE)
            .map_err(|_| (503, error("service_unavailable", "the broker does not answer")))
    }

    /// The user who asks, with one of some tags.
    fn login(&self, request: &Request<'_>, tags: &[&str]) -> Result<(String, String), Answer> {
        let authorization = request.head.authorization.as_deref();
        let login = self.management.logins.login(authorization, request.peer, tags);
        login.map_err(|Refused(reason)| (401, error("not_authorized", reason)))
    }

    /// All that is declared.
    fn list(&self) -> Result<Vec<Listed>, Answer> {
        let mut all = Vec::new();
        let mut cursor = ListCursor::start();
        while !cursor.is_at_end() {
            let (reply, slice) = sync_channel(1);
            self.mailbox.post(Mail::List(cursor, reply));
            let Ok((listed, next)) = slice.recv_timeout(SLICE_PATIENCE) else {
                let reason = "the broker does not answer";
                return Err((503, error("service_unavailable", reason)));
            };
            all.extend(listed);
            cursor = next;
        }
        Ok(all)
    }

    fn declare(&self, wanted: Wanted, name: &str, password: &str) -> Answer {
        let mut declarer = Declarer::new(self.mailbox.clone(), name, password);
        for (vhost, items) in wanted.by_vhost {
            declarer.declare(&vhost, items);
        }
        let (declared, refused) = declarer.finish();
        let mut body = json!({
            "declared": declared,
            "configured_elsewhere": wanted.elsewhere,
            "names_made_up": wanted.made_up,
        });
        if refused.is_empty() {
            return (200, body);
        }
        let list: Vec<Value> = refused
            .iter()
            .map(|refused| json!({ "what": refused.what, "reason": refused.reason }))
            .collect();
        let reason = format!("{} of {} were refused", list.len(), list.len() as u64 + declared);
        body["error"] = "bad_request".into();
        body["reason"] = reason.into();
        body["refused"] = list.into();
        (400, body)
    }
}

fn read_body(request: &mut Request<'_>) -> Result<Value, Answer> {
    let bad = |reason: String| (400, error("bad_request", reason));
    let body = request.read_body(DEFINITIONS_BYTES_MAX).map_err(|why| match why {
        NoBody::TooLarge => {
            let reason = format!("definitions may have {DEFINITIONS_BYTES_MAX} bytes at most");
            (413, error("too_large", reason))
        }
        NoBody::Broken(why) => bad(format!("the body cannot be read: {why}")),
    })?;
    serde_json::from_slice(&body).map_err(|error| bad(format!("the body is not JSON: {error}")))
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'%' {
            bytes.push(first);
            continue;
        }
        let (digits, after) = rest.split_at_checked(2)?;
        let digits = std::str::from_utf8(digits).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}
