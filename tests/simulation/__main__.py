"""Run the world of five buses with many seeds: ``python -m tests.simulation --seeds 10000``.

With ``--rings --seeds 10`` in rings of bridges.
"""

import argparse
import gc
import logging
import sys
import time

from .mutants import MUTANTS, is_found
from .rings import FORMS, histories
from .world import disturbed


def _count_mutants(seeds: range) -> int:
    """Say by how many seeds each bug that is put in on purpose is found; the status is 1 where one is not."""
    missed = 0
    for mutant in MUTANTS:
        found = other = 0
        for seed in seeds:
            try:
                found += is_found(mutant, seed)
            except Exception:
                other += 1
        missed += not found
        print(f"{mutant.__name__}: found by {found} of {len(seeds)} seeds, {other} fail otherwise", flush=True)
    return 1 if missed else 0


def _count_in_rings(seeds: range, seconds: float) -> int:
    """Say what was wrong in the histories of each form of ring; the status is 1 where anything was."""
    wrong = 0
    for name, form in FORMS.items():
        said = heard = failed = 0
        began = time.process_time()
        for seed in seeds:
            try:
                town = histories(form, [seed], seconds)()
            except Exception as error:
                failed += 1
                print(f"{name}, seed {seed}: {error!r}", *getattr(error, "__notes__", ()), sep="\n", flush=True)
            else:
                said, heard = said + town.said, heard + sum(map(len, town.heard.values()))
        wrong += failed
        spent = time.process_time() - began
        print(
            f"{name}: {len(seeds)} seeds of {seconds:g} s, {said} said, {heard} heard, {failed} failed, {spent:.0f} s of CPU",
            flush=True,
        )
    return 1 if wrong else 0


def main() -> int:
    """Run the seeds; the status is 1 where one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--mutants", action="store_true", help="with bugs that are put in: how many seeds find each")
    parser.add_argument("--rings", action="store_true", help="rings of bridges instead, each of `--seconds` of virtual time")
    parser.add_argument("--seconds", type=float, default=180.0, help="of a history of a ring")
    options = parser.parse_args()
    logging.disable()  # a world in which everything breaks has much to tell
    gc.freeze()
    if options.mutants:
        return _count_mutants(range(options.first, options.first + options.seeds))
    if options.rings:
        return _count_in_rings(range(options.first, options.first + options.seeds), options.seconds)
    failed: list[int] = []
    began, busy = time.monotonic(), time.process_time()
    for seed in range(options.first, options.first + options.seeds):
        try:
            disturbed([seed])()
        except Exception as error:
            failed.append(seed)
            print(f"seed {seed}: {error!r}", *getattr(error, "__notes__", ()), sep="\n", flush=True)
        if (seed + 1) % 1000 == 0:
            print(f"{seed + 1 - options.first} seeds, {time.monotonic() - began:.0f} s", flush=True)
    spent, seconds = time.process_time() - busy, time.monotonic() - began
    each = spent / options.seeds * 1000
    print(f"{options.seeds} seeds in {seconds:.0f} s, {spent:.0f} s of CPU, {each:.1f} ms each; {len(failed)} failed: {failed}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
