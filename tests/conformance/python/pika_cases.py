"""All cases with pika: `pika_cases.py <amqp-uri> [case-pattern]`."""

import importlib
from pathlib import Path

import harness

for path in sorted(Path(__file__).parent.glob("cases_*.py")):
    importlib.import_module(path.stem)

if __name__ == "__main__":
    harness.main()
