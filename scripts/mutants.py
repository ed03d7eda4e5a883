"""Deliberate bugs in the core, and how many of them the tests find: ``python -m scripts.mutants --count 200 --seed 1``.

A mutant is one change within a function of the core: another comparison or small number, an inverted condition, a removed
statement. The choice depends on the seed and each mutant's text, so that changes elsewhere do not affect it. The tests run
once under coverage, which records the lines of each; then the tests that execute a mutant's line run until one
fails.

Wings are left out: they have their own tests.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

from attrs import frozen
from coverage import CoverageData

ROOT = Path(__file__).parents[1]
SDK = ROOT / "sdk"
DATA = ROOT / ".coverage.mutants"
WINGS = (
    "analysis asyncapi bindings bridges broker capture cli cluster contracts delivery.py demo fastapi opentelemetry "
    "prometheus protocols/csb protocols/jrep protocols/nats protocols/up protocols/uprotocol "
    "protocols/_protobuf.py protocols/_uprotocol.py running.py spark sync testing transports/asgi transports/postmessage "
    "transports/zenoh"
).split()
ALWAYS = {
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Is: "is not",
    ast.IsNot: "is",
}
AT_FIRST = 150
"""Tests to try first, from as many files as possible: they find nearly all mutants that are found."""
HANGS = 1200.0
"""Seconds after which pytest counts as hanging, which finds the mutant: some prevent its end."""


@frozen
class Mutant:
    """One change: a replacement for the text between two positions of a file."""

    file: Path
    line: int
    begin: int
    end: int
    text: str

    def source(self) -> str:
        data = self.file.read_bytes()
        return (data[: self.begin] + self.text.encode() + data[self.end :]).decode()

    def change(self) -> str:
        was = self.file.read_bytes()[self.begin : self.end].decode()
        return f"{' '.join(was.split())[:60]} -> {self.text[:60]}"

    def rank(self, seed: int) -> bytes:
        return sha256(f"{seed} {self.file.relative_to(SDK)} {self.change()}".encode()).digest()

    def __str__(self) -> str:
        return f"{self.file.relative_to(SDK)}:{self.line}: {self.change()}"


def core() -> list[Path]:
    """Modules of the core."""
    package = SDK / "polybus"
    wings = [package / wing for wing in WINGS]
    return [file for file in sorted(package.rglob("*.py")) if not any(file.is_relative_to(wing) for wing in wings)]


def mutants_of(file: Path) -> Iterator[Mutant]:
    """All possible mutants of a file."""
    source = file.read_text()
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def change(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin, end = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
        return Mutant(file, node.lineno, begin, end, text)

    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in {id(node): node for function in functions for part in function.body for node in ast.walk(part)}.values():
        if isinstance(node, ast.expr | ast.stmt):
            yield from (change(node, text) for text in _others(node))


def _others(node: ast.AST) -> Iterator[str]:
    """Replacements for a node."""
    match node:
        case ast.Compare(left=left, ops=[one], comparators=[right]) if (other := ALWAYS.get(type(one))) is not None:
            yield f"{_text(left)} {other} {_text(right)}"
        case ast.BoolOp(op=op, values=values):
            yield (" or " if isinstance(op, ast.And) else " and ").join(map(_text, values))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _text(operand)
        case ast.Constant(value=bool(value)):
            yield str(not value)
        case ast.Constant(value=int(value)) if value < 17:
            yield str(value + 1)
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() as op, right=right) if not isinstance(left, ast.JoinedStr):
            yield f"{_text(left)} {'-' if isinstance(op, ast.Add) else '+'} {_text(right)}"
        case ast.Expr(value=ast.Call() | ast.Await()) | ast.AugAssign() if "logger." not in ast.unparse(node):
            yield "pass"
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            yield "return None"


def _text(node: ast.expr) -> str:
    return f"({ast.unparse(node)})"


def chosen(count: int, seed: int) -> list[Mutant]:
    """Random choice of the core's mutants."""
    every = [mutant for file in core() for mutant in mutants_of(file)]
    return sorted(every, key=lambda mutant: mutant.rank(seed))[:count]


def measure(tiers: list[str]) -> None:
    """Run the tests once, and record which lines each executes."""
    options = "-m pytest -q -n auto -p no:randomly --cov=polybus --cov-context=test --cov-report=".split()
    environment = {**_environment(SDK), "COVERAGE_FILE": str(DATA)}
    subprocess.run([sys.executable, *options, *tiers], cwd=ROOT, env=environment, check=False)


def tests_of(data: CoverageData, mutant: Mutant) -> list[str]:
    """Tests that execute the line of a mutant, those from different files first."""
    contexts = data.contexts_by_lineno(str(mutant.file)).get(mutant.line, [])
    if contexts == [""]:  # it runs while modules are imported, which any test shows
        every = sorted(data.measured_contexts())
        contexts = random.Random(0).sample(every, min(AT_FIRST, len(every)))
    names = sorted({context.partition("|")[0] for context in contexts if context})
    by_file: dict[str, list[str]] = {}
    for name in random.Random(0).sample(names, len(names)):
        by_file.setdefault(name.partition("::")[0], []).append(name)
    ranked = sorted((rank, name) for names in by_file.values() for rank, name in enumerate(names))
    return [name for _, name in ranked]


def found(mutant: Mutant, tests: list[str]) -> bool:
    """True if one of these tests fails with the mutant."""
    with tempfile.TemporaryDirectory() as folder:
        sdk = Path(folder, "sdk")
        shutil.copytree(SDK, sdk)  # with compiled modules: Python compiles only the mutant's file
        (sdk / mutant.file.relative_to(SDK)).write_text(mutant.source())
        for some in (tests[:AT_FIRST], tests[AT_FIRST:]):
            if some and _fails(sdk, Path(folder), some):
                return True
    return False


def _fails(sdk: Path, folder: Path, tests: list[str]) -> bool:
    arguments = folder / "tests"
    arguments.write_text("\n".join(tests))
    options = "-m pytest -q -x -n 0 -p no:randomly -p no:cacheprovider --timeout=60".split()
    command = [sys.executable, *options, f"@{arguments}"]
    try:
        run = subprocess.run(command, cwd=ROOT, env=_environment(sdk), capture_output=True, check=False, timeout=HANGS)
    except subprocess.TimeoutExpired:
        return True
    return run.returncode != 0


def _environment(sdk: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(sdk), "POLYBUS_CI": "1", "POLYBUS_SPEEDUPS": "0"}


def main() -> int:
    """Print the mutants that no test finds; the status is 1 if there are more than allowed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--at-least", type=float, default=85.0, help="per cent that must be found")
    parser.add_argument("--again", action="store_true", help="with what the last measurement found")
    parser.add_argument("tiers", nargs="*", help="folders of tests; else those of make test")
    options = parser.parse_args()
    if not options.again:
        measure(options.tiers)
    data = CoverageData(str(DATA))
    data.read()
    if not data.measured_files():
        sys.exit("the run under coverage was interrupted and measured nothing: run this again on a quieter machine")
    mutants = chosen(options.count, options.seed)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = pool.map(lambda mutant: found(mutant, tests_of(data, mutant)), mutants)
        caught = 0
        for number, (mutant, outcome) in enumerate(zip(mutants, outcomes, strict=True), 1):
            caught += outcome
            print(f"{number:4} {'found' if outcome else 'LEFT '} {mutant}", flush=True)
    share = 100 * caught / len(mutants)
    print(f"{caught} of {len(mutants)} found: {share:.1f} %")
    return 0 if share >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())
