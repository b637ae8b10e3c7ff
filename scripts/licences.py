#!/usr/bin/env python3
"""Fails if a dependency's licence is not satisfied by the list in deny.toml.

Reads `cargo metadata` and walks everything that the workspace needs to be built or tested: normal, build
and development dependencies, all platforms. `cargo deny check licenses` does the same and more; this one
needs nothing but Rust and Python, so it can be part of `make test` on any machine.

    scripts/licences.py            check; the last line counts
    scripts/licences.py --list     also print each crate with its licence
"""
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent


def satisfied(expression, allowed):
    """Whether an SPDX expression can be satisfied with the allowed licences.

    >>> allowed = {"MIT", "Apache-2.0", "ISC"}
    >>> satisfied("MIT OR GPL-3.0-only", allowed)
    True
    >>> satisfied("MIT AND GPL-3.0-only", allowed)
    False
    >>> satisfied("(GPL-3.0-only OR ISC) AND Apache-2.0", allowed)
    True
    >>> satisfied("MIT/Apache-2.0", allowed)          # the way it was written before SPDX
    True
    >>> satisfied("Apache-2.0 WITH LLVM-exception", allowed)
    False
    >>> satisfied("GPL-3.0-only OR MIT AND ISC", allowed)   # AND binds tighter
    True
    >>> satisfied("MIT OR", allowed)
    Traceback (most recent call last):
    ValueError: not an SPDX expression: MIT OR
    """
    words = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    bad = ValueError(f"not an SPDX expression: {expression}")

    def take():
        if not words:
            raise bad
        return words.pop(0)

    def one():
        word = take()
        if word == "(":
            result = any_of()
            if take() != ")":
                raise bad
            return result
        if word in (")", "AND", "OR", "WITH"):
            raise bad
        if words[:1] == ["WITH"]:
            take()
            word = f"{word} WITH {take()}"
        return word in allowed

    def all_of():
        result = one()
        while words[:1] == ["AND"]:
            take()
            result = one() and result
        return result

    def any_of():
        result = all_of()
        while words[:1] == ["OR"]:
            take()
            result = all_of() or result
        return result

    result = any_of()
    if words:
        raise bad
    return result


def dependencies(metadata):
    """Packages reachable from the workspace, without the workspace itself."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    members = set(metadata["workspace_members"])
    seen, todo = set(), list(members)
    while todo:
        identity = todo.pop()
        if identity not in seen:
            seen.add(identity)
            todo.extend(edge["pkg"] for edge in nodes[identity]["deps"])
    return sorted((packages[i] for i in seen - members), key=lambda p: (p["name"], p["version"]))


def check(manifest, rules, show):
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--manifest-path", str(manifest)]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    allowed = set(rules["allow"])
    exceptions = {}
    for entry in rules.get("exceptions", []):
        if not entry.get("reason"):
            raise SystemExit(f"licences.py: deny.toml has an exception without a reason: {entry.get('name')}")
        exceptions[entry["name"]] = set(entry["allow"])
    problems = []
    packages = dependencies(metadata)
    for package in packages:
        name, licence = f"{package['name']} {package['version']}", package["license"]
        if show:
            print(f"{name}: {licence}")
        if not licence:
            problems.append(f"{name} states no licence")
            continue
        try:
            fine = satisfied(licence, allowed | exceptions.get(package["name"], set()))
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        if not fine:
            problems.append(f"{name} is under {licence}, which the list in deny.toml does not satisfy")
    for name in sorted(set(exceptions) - {package["name"] for package in packages}):
        problems.append(f"deny.toml has an exception for {name}, which nothing depends on")
    return packages, problems


def main():
    with open(REPO / "deny.toml", "rb") as file:
        rules = tomllib.load(file)["licenses"]
    packages, problems = check(REPO / "Cargo.toml", rules, "--list" in sys.argv[1:])
    for problem in problems:
        print(f"licences: {problem}")
    print(f"licences: {len(packages)} dependencies, {len(problems)} problems")
    return 1 if problems or not packages else 0


if __name__ == "__main__":
    sys.exit(main())
