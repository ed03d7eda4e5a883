"""``python -m fuzz csb --seconds 600``: coverage-guided, with atheris; `make fuzz TARGET=csb SECONDS=600` installs it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from tempfile import TemporaryDirectory


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fuzz", description=__doc__)
    parser.add_argument("target", choices=("ubre", "ubre-twins", "csb", "jrep", "nats", "nats-cluster", "uprotocol"))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="a folder that is kept; what was found goes there")
    given = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("python -m fuzz: atheris is missing: make fuzz TARGET=csb, or pip install 'polybus[fuzz]'")
    with atheris.instrument_imports(include=["polybus.protocols", "polybus.body"]):
        from fuzz.targets import TARGETS
    target = TARGETS[given.target]
    with TemporaryDirectory() as made:
        seeds = Path(made)
        for number, seed in enumerate(target.seeds()):
            (seeds / str(number)).write_bytes(seed)
        folders = [str(given.corpus)] if given.corpus else []
        if given.corpus:
            given.corpus.mkdir(parents=True, exist_ok=True)
        # Failing input is written beside this, as crash-<hash>: repeat it with ``fuzz.targets.TARGETS[name](data)``.
        atheris.Setup([sys.argv[0], f"-max_total_time={given.seconds}", "-max_len=4096", *folders, made], target)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
