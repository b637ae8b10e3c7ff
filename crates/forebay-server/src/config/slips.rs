//! Slips of the hand in a configuration file: what the TOML library says of them, in words that lead to the cure.

use strsim::levenshtein;

use super::keys::{KEYS, Kind};

/// How the library ends its sentence about something else in the place of a list.
const NO_LIST: &str = "expected a sequence";

/// Lists of tables within those of [`KEYS`].
const INNER_TABLES: [&str; 2] = ["users.permissions", "users.topic_permissions"];

/// The key that an error is about, unless the sentence names it, and the sentence. `start` is where in `text` it is.
pub(super) fn told(text: &str, start: Option<usize>, message: &str) -> (Option<String>, String) {
    let heading = start.and_then(|start| heading_at(text, start));
    let (key, value) = start.and_then(|start| key_at(text, start)).unzip();
    let what = without_value(&in_words(&message.trim().replace('\n', ", ")));
    if let Some(sentence) = unknown_key(&what, heading.is_some()) {
        return (None, sentence);
    }
    if let Some(sentence) = heading.and_then(|path| wrong_heading(text, path, &what)) {
        return (None, sentence);
    }
    let (Some(key), Some(value)) = (key, value) else { return (None, what) };
    let kind = KEYS.iter().find(|it| it.name == key).map(|it| it.kind);
    match kind {
        // Perhaps a password stands there.
        Some(Kind::Tables) if what.ends_with(NO_LIST) => {
            (None, format!("{key} is a list of tables, each below [[{key}]]"))
        }
        Some(Kind::List) if what.ends_with(NO_LIST) && value.ends_with('"') => {
            (None, format!("{key} is a list: [{value}]"))
        }
        Some(Kind::List) if what.ends_with(NO_LIST) => {
            (None, format!("{key} is a list of strings: [\"…\"]"))
        }
        _ => (Some(key.to_owned()), what),
    }
}

/// The one of `known` that is most likely meant by `name`: the only one that goes on where it ends, or the nearest, if no more than a third
/// of it is another.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let known: Vec<&str> = known.into_iter().collect();
    let mut longer = known.iter().filter(|it| !name.is_empty() && it.starts_with(&name));
    if let (Some(one), None) = (longer.next(), longer.next()) {
        return Some(one);
    }
    let near = known.into_iter().map(|it| (levenshtein(&name, it), it)).min()?;
    (near.0 * 3 <= name.len()).then_some(near.1)
}

/// Of a key that there is not, the one that is meant, or all; a heading may be one of sections, which there are none of.
fn unknown_key(what: &str, is_heading: bool) -> Option<String> {
    let (name, expected) = what.strip_prefix("unknown field `")?.split_once("`, expected ")?;
    let known = || expected.split('`').skip(1).step_by(2);
    Some(match nearest(name, known()) {
        Some(meant) => format!("no key is called `{name}`; is `{meant}` meant?"),
        None if is_heading && known().any(|key| key == KEYS[0].name) => format!(
            "there is no section `{name}`: keys stand by themselves, above the first [[users]] and the like"
        ),
        None => format!("no key is called `{name}`, expected {expected}"),
    })
}

/// The path in the heading of a single table, `[a.b]`, that begins at `start`.
fn heading_at(text: &str, start: usize) -> Option<&str> {
    let from = text[..start].rfind('\n').map_or(0, |end| end + 1);
    let line = text[from..].lines().next()?.trim_start();
    line.strip_prefix('[')?.trim_start_matches('[').split_once(']').map(|(path, _)| path.trim())
}

/// What a single table should be instead.
fn wrong_heading(text: &str, path: &str, what: &str) -> Option<String> {
    what.strip_prefix("invalid type: map")?;
    let name = path.split('.').next()?.trim();
    let key = KEYS.iter().find(|it| it.name == name)?;
    Some(match key.kind {
        Kind::Tables => {
            let is_inner = INNER_TABLES.contains(&path) && text.contains("[[users]]");
            let path = if is_inner { path } else { name };
            format!("{path} is a list of tables: write [[{path}]], once for each")
        }
        _ => format!("{name} is no table: write {name} = …, above all tables"),
    })
}

/// The key of what is wrong, and the rest of its line: the library knows where a value is wrong and not under which key. In a table on
/// one line the key is the last one before; a text that holds a `=` is none.
fn key_at(text: &str, start: usize) -> Option<(&str, &str)> {
    let from = text[..start].rfind('\n').map_or(0, |end| end + 1);
    let line = text[from..].lines().next()?;
    let (before, value) = match text[from..start].trim_end().strip_suffix('=') {
        Some(before) => (before, line.get(start - from..)?),
        None => line.split_once('=')?,
    };
    let key = before.trim().rsplit(['{', ',', ' ', '\t']).next()?;
    let is_bare = |it: char| it.is_ascii_alphanumeric() || it == '_' || it == '-';
    (!key.is_empty() && key.chars().all(is_bare)).then_some((key, value.trim()))
}

/// What the library says of a value of another type, without the value: it may be a password whose quotes were forgotten.
fn without_value(message: &str) -> String {
    let said = |message: &str| {
        let (kind, _) = message.strip_prefix("invalid type: ")?.split_once(['`', '"'])?;
        let (_, expected) = message.rsplit_once(", expected ")?;
        Some(format!("invalid type: {}, expected {expected}", kind.trim_end()))
    };
    said(message).unwrap_or_else(|| message.to_owned())
}

/// What the library says of a number, with its bounds in place of its type.
pub(super) fn in_words(message: &str) -> String {
    for (type_name, bounds) in [
        ("u16", "a number from 0 to 65535"),
        ("u32", "a number from 0 to 4294967295"),
        ("u64", "a number from 0"),
        ("usize", "a number from 0"),
        ("i64", "a whole number"),
    ] {
        if let Some(before) = message.strip_suffix(&format!("expected {type_name}")) {
            return format!("{before}expected {bounds}");
        }
    }
    message.to_owned()
}

#[cfg(test)]
mod tests {
    use super::nearest;
    use crate::config::{KEYS, Layer};

    fn error(text: &str) -> String {
        Layer::from_toml("f", text).unwrap_err().to_string()
    }

    #[test]
    fn of_a_key_that_is_none_the_nearest_is_named() {
        let meant = |name: &str| nearest(name, KEYS.iter().map(|key| key.name));
        for (name, key) in [
            ("memory_buget", "memory_budget"),
            ("memory_bugdet", "memory_budget"),
            ("memory-budget", "memory_budget"),
            ("memory", "memory_budget"),
            ("User", "users"),
            ("vhost", "vhosts"),
            ("heartbeat", "heartbeat_s"),
        ] {
            assert_eq!(meant(name), Some(key), "{name}");
        }
        for name in ["", "server", "listeners", "log", "no_such_key"] {
            assert_eq!(meant(name), None, "{name}");
        }
        assert_eq!(
            error("memory_buget = 1"),
            "f line 1: no key is called `memory_buget`; is `memory_budget` meant?"
        );
        assert_eq!(error("[[user]]"), "f line 1: no key is called `user`; is `users` meant?");
        let inner = "[[users]]\nname = \"a\"\npasword = \"b\"";
        assert_eq!(error(inner), "f line 3: no key is called `pasword`; is `password` meant?");
        let limit = "[[vhost_limits]]\nvhost = \"/\"\nmax-conections = 1";
        assert!(error(limit).ends_with("is `max-connections` meant?"), "{}", error(limit));
    }

    #[test]
    fn a_heading_that_is_wrong_is_told_with_the_right_one() {
        let users = "f line 1: users is a list of tables: write [[users]], once for each";
        for text in ["[users]\nname = \"a\"", "[users.app]\nname = \"a\"", "[users.permissions]"] {
            assert_eq!(error(text), users, "{text}");
        }
        let inner = "[[users]]\nname = \"a\"\n[users.permissions]\nvhost = \"/\"";
        assert!(error(inner).contains("write [[users.permissions]]"), "{}", error(inner));
        assert!(error("[http]\nport = 1").ends_with("write http = …, above all tables"));
        let section = "f line 1: there is no section `server`: keys stand by themselves";
        assert!(error("[server]\nhttp = \"off\"").starts_with(section));
    }

    #[test]
    fn a_value_of_another_type_is_told_with_the_right_one() {
        let policy =
            "[[policies]]\nvhost = \"/\"\nname = \"p\"\npattern = \"\"\npriority = \"high\"";
        let what = "f line 5, priority: invalid type: string, expected a whole number";
        assert_eq!(error(policy), what);
        assert_eq!(error("amqp = 5672"), "f line 1: amqp is a list of strings: [\"…\"]");
        assert!(
            error("policies = 5")
                .ends_with("policies is a list of tables, each below [[policies]]")
        );
    }
}
