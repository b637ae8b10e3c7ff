#!/usr/bin/env python3
"""House rules that no compiler knows, each with the reason why it is a rule.

    scripts/tidy.py            checks every file that git knows or would take; the last line counts

A rule is a function below; it yields (file, line or 0, what is wrong). To bend a rule, add to the list
beside it and say why there.
"""
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
TEXT = {".rs", ".py", ".sh", ".md", ".toml", ".json", ".js", ".go", ".java", ".xml", ".yml", ".yaml", ".html", ".svg", ".lock", ".mod", ".sum", ".conf", ""}


def files():
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, check=True, stdout=subprocess.PIPE, text=True,
    ).stdout
    return [Path(name) for name in sorted(set(listing.split("\0"))) if name and (REPO / name).is_file()]


def lines(path):
    return (REPO / path).read_text(encoding="utf-8").split("\n")


def text_files(paths):
    for path in paths:
        if path.suffix in TEXT and path.parts[:2] != ("fuzz", "corpus"):
            yield path


# Patterns are written so that they do not match themselves.
MACHINE_PATHS = re.compile(r"(?<![\w.<}/-])/(root|home/[a-z][\w-]*|Users/[A-Za-z][\w-]*|work)/")


def no_machine_paths(paths):
    """A path of the machine where something was written is wrong on every other one, and tells about its owner."""
    for path in text_files(paths):
        for number, line in enumerate(lines(path), 1):
            if MACHINE_PATHS.search(line):
                yield path, number, f"absolute path of somebody's machine: {line.strip()[:120]}"


REGISTRIES = re.compile(
    r"registry[.](npmjs|yarnpkg)[.]|(static|index)[.]crates[.]io|(files[.]pythonhosted|pypi)[.]org/|proxy[.]golang[.]org"
    r"|repo1?[.]maven([.]apache)?[.]org|repo[.]maven[.]apache|(extra-)?index-url *=|replace-with *=|artifactor[y]|[.]jfrog[.]"
)


def no_registry_hosts(paths):
    """Where packages come from is each machine's own configuration; a mirror written into a lock file breaks everybody else."""
    for path in text_files(paths):
        for number, line in enumerate(lines(path), 1):
            if REGISTRIES.search(line):
                yield path, number, f"package registry host: {line.strip()[:120]}"


# Lines; what a reader takes in at one sitting. Most files have 100 to 400.
LENGTH_MAX = {".rs": 550, ".py": 600, ".js": 600, ".go": 550, ".java": 550, ".sh": 250, ".md": 500}
# A file that is longer may not grow: raise no number here, lower it when the file has shrunk.
LENGTH_EXCEPTIONS = {
    "crates/forebay-broker/src/error.rs": 630,  # one table: every error text that clients compare
    "crates/forebay-broker/src/topology/vhost.rs": 620,  # one machine, with its tests
    "crates/forebay-store/src/log.rs": 660,  # one machine: the writer of the log
    "crates/forebay-bench/src/generator.rs": 600,  # one loop, in the order of its drawing
    "crates/forebay-broker/tests/behaviour/durability.rs": 700,  # one broker on a disk that breaks, and what it promises
}


def files_stay_short(paths):
    """A file that grows for ever ends up holding two nouns. One machine, one table or one guide may be long; say so in the list."""
    for path in paths:
        limit = LENGTH_EXCEPTIONS.get(str(path), LENGTH_MAX.get(path.suffix))
        if limit is None:
            continue
        count = len(lines(path)) - 1
        if count > limit:
            yield path, 0, f"{count} lines, more than {limit}"
    for name in LENGTH_EXCEPTIONS:
        if not (REPO / name).is_file():
            yield Path(name), 0, "is excepted from the length rule and does not exist"


# Bottom floor first, as in the root Cargo.toml. A crate may depend on what its line names, and on nothing else of ours.
ARROWS = {
    "forebay-wire": set(),  # bytes and nothing else: broker, client, fuzzers and tests share it
    "forebay-flow": set(),  # arithmetic only: client, broker and simulations share it
    "forebay-store": set(),  # knows no AMQP, so that its format outlives any protocol
    "forebay-broker": {"forebay-wire", "forebay-flow", "forebay-store"},  # no I/O: must never see the server
    "forebay-client": {"forebay-wire", "forebay-flow"},  # talks to any broker: must not know ours
    "forebay-server": {"forebay-wire", "forebay-flow", "forebay-store", "forebay-broker"},
    "forebay-pipeline": {"forebay-flow"},  # knows no AMQP: queues are one source among others
    "forebay": {"forebay-server", "forebay-client", "forebay-pipeline"},
    "forebay-bench": {"forebay-wire", "forebay-flow", "forebay-client", "forebay-pipeline"},  # measures brokers from outside, ours like others
    "forebay-engines": {"forebay-wire", "forebay"},  # a user's program, so it knows what users know
    "forebay-cli": {"forebay-wire", "forebay-store", "forebay-client", "forebay-server", "forebay", "forebay-bench"},
    "forebay-sim": {"forebay-wire", "forebay-flow", "forebay-store", "forebay-broker"},  # runs the machines; what is above them is not simulated
}
# What would bring in I/O, threads or a clock where the simulator must be able to stand in.
PURE = {"forebay-wire", "forebay-flow", "forebay-store", "forebay-broker"}
IMPURE_CRATES = {"tokio", "mio", "polling", "rustix", "socket2", "libc", "tracing", "signal-hook", "tiny_http", "rand"}


def arrows_point_down(paths):
    """A lower floor that knows a higher one can be neither understood nor tested without it."""
    for path in paths:
        if path.name != "Cargo.toml" or path.parts[0] != "crates":
            continue
        manifest = tomllib.loads((REPO / path).read_text())
        name = manifest["package"]["name"]
        if name not in ARROWS:
            yield path, 0, f"{name} has no place in the house yet: give it a line in ARROWS of scripts/tidy.py"
            continue
        tables = [manifest] + list(manifest.get("target", {}).values())
        for table in tables:
            for dependency in {**table.get("dependencies", {}), **table.get("build-dependencies", {})}:
                if dependency.startswith("forebay") and dependency not in ARROWS[name]:
                    yield path, 0, f"{name} must not depend on {dependency}"
                if name in PURE and dependency in IMPURE_CRATES:
                    yield path, 0, f"{name} is a pure machine and must not depend on {dependency}"


# Store: FileDisk is the one place that performs what the machine asked for.
CLOCKS = re.compile(r"\b(Instant::now|SystemTime::now|thread::spawn|thread::sleep|TcpStream|TcpListener|std::fs|std::net)\b")
IMPURE_FILES = {"crates/forebay-store/src/disk.rs", "crates/forebay-store/src/file_disk.rs"}


# Machines in crates that have a shell beside them: files, and directories with all below.
PURE_PLACES = [
    "crates/forebay-client/src/ladder/again.rs",
    "crates/forebay-client/src/ladder/rung.rs",
    "crates/forebay-client/src/machine",
    "crates/forebay-client/src/session",
    "crates/forebay/src/doctor.rs",
    "crates/forebay-pipeline/src/backoff.rs",
    "crates/forebay-pipeline/src/batcher.rs",
    "crates/forebay-pipeline/src/breaker.rs",
    "crates/forebay-pipeline/src/concurrency.rs",
    "crates/forebay-pipeline/src/dispatch.rs",
    "crates/forebay-pipeline/src/floor.rs",
    "crates/forebay-pipeline/src/seats.rs",
]
RUNTIMES = re.compile(r"\b(tokio|async_std|smol)::|\basync fn\b|\.await\b")


def machines_are_pure(paths):
    """Same inputs, same outputs: a clock, a socket or a thread inside a state machine ends reproducible tests."""
    for place in PURE_PLACES:
        if not (REPO / place).exists():
            yield Path(place), 0, "is named as a pure machine and does not exist"
    for path in paths:
        if path.suffix != ".rs" or len(path.parts) < 4 or path.parts[0] != "crates" or path.parts[2] != "src":
            continue
        named = any(path.is_relative_to(place) for place in PURE_PLACES)
        if not (named or path.parts[1] in PURE) or str(path) in IMPURE_FILES or "tests" in path.stem or "tests" in path.parts:
            continue
        for number, line in enumerate(lines(path), 1):
            if "#[cfg(test)]" in line:
                break
            impure = CLOCKS.search(line) or (named and RUNTIMES.search(line))
            if impure and not line.lstrip().startswith("//"):
                yield path, number, f"not in a pure machine: {line.strip()}"


LEFTOVERS = re.compile(r"\b(todo|unimplemented|dbg)!\s*\(|#\[ignore|\bFIXME\b|\bXXX\b|@unittest.skip|pytest.mark.skip|\bit\.skip\(|t\.Skip\(")


def nothing_half_done(paths):
    """A stub that compiles and a test that does not run both look like work that is finished."""
    for path in paths:
        if path.suffix in {".rs", ".py", ".js", ".go", ".java"} and path.name != "tidy.py":
            for number, line in enumerate(lines(path), 1):
                if LEFTOVERS.search(line):
                    yield path, number, f"half done: {line.strip()}"


BAD_NAMES = re.compile(r"(^|[-_])(utils?|common|managers?|helpers?|misc|shared)$")


def names_say_something(paths):
    """A file called `util` has no noun, so everything fits into it and nothing can be found in it."""
    for path in paths:
        if path.suffix == ".rs" and (BAD_NAMES.search(path.stem) or any(BAD_NAMES.search(part) for part in path.parts[:-1])):
            yield path, 0, "a name that says nothing"


LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")


def anchors(path):
    """Anchors of the headings of a Markdown file, made the way forges make them."""
    fenced, found = False, set()
    for line in lines(path):
        if line.startswith("```"):
            fenced = not fenced
        if not fenced and line.startswith("#"):
            title = line.lstrip("#").strip().lower().replace("`", "")
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return found


def links_lead_somewhere(paths):
    """A document that points at nothing costs a newcomer's trust, and a renamed file should not be able to do that silently."""
    for path in paths:
        if path.suffix != ".md":
            continue
        fenced = False
        for number, line in enumerate(lines(path), 1):
            if line.startswith("```"):
                fenced = not fenced
            if fenced:
                continue
            for match in LINK.finditer(line):
                target = next(group for group in match.groups() if group)
                if re.match(r"[a-z]+:", target):
                    continue
                name, _, anchor = target.partition("#")
                place = Path(os.path.normpath(path.parent / name)) if name else path
                if not (REPO / place).exists():
                    yield path, number, f"link to {target}, which does not exist"
                elif anchor and place.suffix == ".md" and anchor not in anchors(place):
                    yield path, number, f"link to {target}, and there is no such heading"


RULES = [
    no_machine_paths,
    no_registry_hosts,
    files_stay_short,
    arrows_point_down,
    machines_are_pure,
    nothing_half_done,
    names_say_something,
    links_lead_somewhere,
]


def main():
    paths = files()
    broken = 0
    for rule in RULES:
        found = list(rule(paths))
        broken += bool(found)
        print(f"{'FAIL' if found else 'ok  '} {rule.__name__.replace('_', ' ')}")
        for path, number, problem in found:
            print(f"     {path}{f':{number}' if number else ''}: {problem}")
        if found:
            print(f"     why: {rule.__doc__}")
    print(f"tidy: {len(paths)} files, {len(RULES) - broken} rules kept, {broken} broken")
    return 1 if broken or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
