#!/usr/bin/env python3
"""Puts deliberate faults into the code, one by one, and shows that a check notices each of them.

    scripts/mutate.py                     all mutants, about an hour on two cores
    scripts/mutate.py --only NAME ...     these; a name may hold * and ?
    scripts/mutate.py --list              names, what they break, and what is to catch them
    scripts/mutate.py --stale             only those whose place in the code is gone; builds nothing
    scripts/mutate.py --seeds 500         fewer seeds than 3000 for each
    scripts/mutate.py --seconds 20        less time than 60 s for each

A mutant that no check notices has survived: a check is missing. Add one, at the lowest level that can show
the fault, and name it in the mutant. A fault that breaks no promise is no mutant: replace it.

Mutants are in tests/mutants/*.txt, one after another:

    == NAME
    what it breaks, in a sentence or two
    caught by sim                         by seeds of the simulator, or
    caught by CRATE TEST                  by a test, named as for `cargo test -p CRATE TEST`
    in FILE
      a line that stays and helps to find the place
    - a line that goes
    + a line that comes

The lines that stay or go, in this order, must occur exactly once in FILE (each stands behind two characters,
a mark and a space); another `in` continues with another place. What does not occur any more makes the mutant
stale, and the run fails: code was changed, so change the mutant with it.

The tree as it is, committed or not, is copied below target/mutants, where mutants are applied and built; the
originals are not touched. First the copy is checked without a mutant: seeds and tests must pass. If the named
check does not notice a mutant, the tests of its crate are tried. Exit code 0 only if every mutant was killed.
"""
import argparse
import fnmatch
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
BASE = Path(os.environ.get("CARGO_TARGET_DIR", REPO / "target")).resolve() / "mutants"
TREE, BUILD = BASE / "tree", BASE / "build"
# A build and a test run end by themselves; a mutant may make them hang.
BUILD_S, TEST_S = 1800, 900
# Seeds of the unchanged tree, which must pass: what fails there proves nothing about a mutant.
SOUND_SEEDS = 300
ENVIRONMENT = {
    **os.environ,
    "CARGO_TARGET_DIR": str(BUILD),
    "CARGO_TERM_COLOR": "never",
    "CARGO_INCREMENTAL": "1",
    "RUST_BACKTRACE": "0",
}
# Built for each mutant and run for seconds: that it is built soon counts more than that it runs fast.
SOON_BUILT = [
    word
    for crate in ("forebay-wire", "forebay-store", "forebay-broker", "forebay-sim")
    for word in ("--config", f"profile.sim.package.{crate}.opt-level=1")
]


@dataclass
class Mutant:
    """One deliberate fault."""

    name: str
    where: str  # file and line of its text
    breaks: str = ""
    check: tuple = ()  # ("sim",) or (crate, test)
    places: list = field(default_factory=list)  # (file, old lines, new lines)

    def crate(self):
        return self.places[0][0].split("/")[1]

    def mutated(self, read):
        """The changed files, or a ValueError that says what is stale."""
        texts = {}
        for file, old, new in self.places:
            text = texts.get(file) or read(file)
            old, new = ("".join(line + "\n" for line in lines) for lines in (old, new))
            # At the beginning of a line only.
            count = ("\n" + text).count("\n" + old)
            if count != 1:
                raise ValueError(f"the text to replace occurs {count} times in {file}")
            texts[file] = ("\n" + text).replace("\n" + old, "\n" + new)[1:]
        return texts


def read_mutants(path):
    """The mutants of one file."""
    mutants = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"{path.relative_to(REPO)}:{number}"
        mutant = mutants[-1] if mutants else None
        if line.startswith("== "):
            mutants.append(Mutant(line[3:].strip(), where))
        elif mutant is None:
            continue  # before the first mutant anything may be said
        elif line.startswith("caught by "):
            mutant.check = tuple(line.split()[2:])
        elif line.startswith("in "):
            mutant.places.append((line[3:].strip(), [], []))
        elif mutant.places:
            if line.strip():
                mark, text = line[:1], line[2:]
                if mark not in "-+ " or line[1:2] not in ("", " "):
                    sys.exit(f"{where}: a line begins with '-', '+' or ' ', and a space")
                _, old, new = mutant.places[-1]
                old.extend([text] if mark in "- " else [])
                new.extend([text] if mark in "+ " else [])
        elif line.strip():
            mutant.breaks = f"{mutant.breaks} {line.strip()}".strip()
    for mutant in mutants:
        known = mutant.check == ("sim",) or len(mutant.check) == 2
        if not (mutant.breaks and known and mutant.places and all(old != new for _, old, new in mutant.places)):
            sys.exit(f"{mutant.where}: '{mutant.name}' does not say what it breaks, what catches it, or where")
    return mutants


def files():
    """What git knows or would take."""
    listing = subprocess.run(
        ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPO, check=True, stdout=subprocess.PIPE, text=True,
    ).stdout
    return {name for name in listing.split("\0") if name and (REPO / name).is_file()}


def copy_tree(names, changed):
    """Makes the copy equal to the tree, but for the `changed` files. Only what differs is written, so that
    only what depends on it is built again."""
    for name in names:
        data = changed[name].encode() if name in changed else (REPO / name).read_bytes()
        target = TREE / name
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
            target.chmod((REPO / name).stat().st_mode)
    # What a failing test left behind (seeds of property tests) is not for the next mutant.
    for directory, _, found in os.walk(TREE):
        for name in found:
            path = Path(directory) / name
            if str(path.relative_to(TREE)) not in names:
                path.unlink()


def run(command, limit_s, until=None):
    """Runs a command in the copy: (exit code or None if it was ended, output). `until`: a pattern of a line
    at which to end it."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command, cwd=TREE, env=ENVIRONMENT, start_new_session=True, text=True, errors="replace",
            stdout=subprocess.PIPE, stderr=errors,
        )

        def on_alarm(_signal, _frame):
            raise TimeoutError

        output, ended = [], False
        signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, limit_s)
        try:
            for line in process.stdout:
                output.append(line)
                if until and re.search(until, line):
                    ended = True
                    break
            else:
                process.wait()
        except TimeoutError:
            ended = True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.stdout.close()
            process.wait()
        errors.seek(0)
        return None if ended else process.returncode, "".join(output) + errors.read()


class Broken(Exception):
    """A build failed."""


def cargo(*arguments, limit_s=BUILD_S):
    return run(["cargo", *arguments], limit_s)


def build(*arguments):
    code, output = cargo(*arguments)
    if code != 0:
        raise Broken(output[-3000:])


def first_panic(output):
    """Place and text of the first panic."""
    found = re.search(r"panicked at ([^\n]*):\n([^\n]*)", output)
    return f"panic at {found[1]} {found[2]}"[:160] if found else None


def try_simulator(seeds, seconds):
    """What a seed found, or None."""
    build("build", "--profile", "sim", "--locked", "-q", "-p", "forebay-sim", *SOON_BUILT)
    command = [str(BUILD / "sim" / "forebay-sim"), "--seeds", str(seeds), "--base", "0"]
    code, output = run(command, seconds, until=r"^seed \d+ ")
    found = re.search(r"^seed (\d+) after \d+ events: ([^:\n]*)", output, re.MULTILINE)
    if found:
        return f"sim, seed {found[1]}: {found[2]}"
    if code not in (0, None):
        return f"sim: {first_panic(output) or f'ended with {code}'}"
    return None


def try_tests(crate, names):
    """The first test that fails, or None."""
    target = ["test", "--locked", "-q", "-p", crate, "--tests"]
    build(*target, "--no-run")
    code, output = cargo(*target, "--no-fail-fast", "--", *names, limit_s=TEST_S)
    if code is None:
        return f"{crate}: its tests do not end"
    if code != 0:
        failed = re.search(r"^---- (\S+) stdout ----", output, re.MULTILINE)
        return f"{crate}: {failed[1] if failed else first_panic(output) or 'tests end early'}"
    passed = sum(int(count) for count in re.findall(r"^test result: ok\. (\d+) passed", output, re.MULTILINE))
    if passed < len(names):
        raise Broken(f"cargo test -p {crate} {' '.join(names)}: {passed} tests have such names")
    return None


def try_mutant(mutant, options):
    """What killed it, or None."""
    if mutant.check == ("sim",):
        killer = try_simulator(options.seeds, options.seconds)
    else:
        killer = try_tests(mutant.check[0], [mutant.check[1]])
    if killer or options.named_only:
        return killer
    killer = try_tests(mutant.crate(), [])
    return f"not as named, but by {killer}" if killer else None


def check_unchanged(mutants, options):
    """The copy without a mutant must pass, or nothing is proved by what fails."""
    began = time.monotonic()
    problems = []
    if any(mutant.check == ("sim",) for mutant in mutants):
        problems.append(try_simulator(min(SOUND_SEEDS, options.seeds), max(60, options.seconds)))
    tests = {}
    for mutant in mutants:
        if mutant.check != ("sim",):
            tests.setdefault(mutant.check[0], set()).add(mutant.check[1])
    for crate, names in sorted(tests.items()):
        problems.append(try_tests(crate, sorted(names)))
    problems = [problem for problem in problems if problem]
    if problems:
        sys.exit("the tree fails without a mutant: " + "; ".join(problems))
    print(f"the unchanged tree passes ({time.monotonic() - began:.0f} s)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants; a name may hold * and ?")
    parser.add_argument("--list", action="store_true", help="names, what they break, what is to catch them")
    parser.add_argument("--stale", action="store_true", help="only those whose place in the code is gone; builds nothing")
    parser.add_argument("--seeds", type=int, default=3000, help="seeds for each mutant at most (3000)")
    parser.add_argument("--seconds", type=int, default=60, help="seconds of seeds for each mutant at most (60)")
    parser.add_argument("--named-only", action="store_true", help="try no other tests if the named check notices nothing")
    options = parser.parse_args()

    mutants = [mutant for path in sorted((REPO / "tests/mutants").glob("*.txt")) for mutant in read_mutants(path)]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) < len(names):
        sys.exit("two mutants have one name")
    if options.only:
        mutants = [mutant for mutant in mutants if any(fnmatch.fnmatch(mutant.name, name) for name in options.only)]
    if not mutants:
        sys.exit("there is no such mutant; --list names them")
    stale = 0
    sound = []
    for mutant in mutants:
        try:
            sound.append((mutant, mutant.mutated(lambda file: (REPO / file).read_text(encoding="utf-8"))))
        except (ValueError, OSError) as error:
            stale += 1
            print(f"STALE     {mutant.name} ({mutant.where}): {error}", flush=True)
    if options.list:
        for mutant in mutants:
            print(f"{mutant.name}\n    {mutant.breaks}\n    caught by {' '.join(mutant.check)}")
    if options.list or options.stale:
        return 1 if stale else 0

    os.nice(5)
    # What was started ends with this script.
    signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(1))
    began = time.monotonic()
    tree = files()
    copy_tree(tree, {})
    try:
        check_unchanged([mutant for mutant, _ in sound], options)
    except Broken as error:
        sys.exit(f"the tree without a mutant: {error}")
    killed = 0
    for mutant, changed in sound:
        since = time.monotonic()
        copy_tree(tree, changed)
        try:
            killer = try_mutant(mutant, options)
            verdict = f"killed    {mutant.name}: {killer}" if killer else f"SURVIVED  {mutant.name}: {mutant.breaks}"
            killed += bool(killer)
        except Broken as error:
            verdict = f"BROKEN    {mutant.name} ({mutant.where}): {error}"
        print(f"{verdict} ({time.monotonic() - since:.0f} s)", flush=True)
    copy_tree(tree, {})
    print(f"mutants: {killed} of {len(mutants)} killed, {stale} stale, {time.monotonic() - began:.0f} s")
    return 0 if killed == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main())
