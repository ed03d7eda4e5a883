"""`polybus.js`: its rules with a socket and a clock that do what a test says, its size, and what `npm pack` makes of it."""

from __future__ import annotations

import gzip
import json
import shutil
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from polybus import Bus, Code, DeadlineExceeded, Subject
from polybus.asyncapi import document, typescript
from polybus.errors import class_of
from polybus.subjects import matches
from tests.integration.interop.node_peer import require_node
from tests.support import free_port

from .packages import NODE, run

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SCRIPTS = ROOT / "sdk" / "polybus" / "javascript"

SUBJECTS = ["a", "b", "a.b", "a.b.c", "a.x", "axb", "a.x.c", "a.*", "/s/1", "/s/1/2", "s/1"]
PATTERNS = ["a", "a.*", "a.>", "*", ">", "*.b", "a.*.c", "a.{name}", "a.{name}.c", "/s/*", "/s/>", "s/*", "a+b"]


def test_the_rules_of_the_client() -> None:
    require_node()
    fits = {pattern: [subject for subject in SUBJECTS if matches(pattern, subject)] for pattern in PATTERNS}
    errors = [
        [(DeadlineExceeded if code is Code.DEADLINE_EXCEEDED else class_of(code, reason)).__name__, code, reason]
        for code in list(Code)[1:]
        for reason in (None, "sold", "too_large")
    ]
    patterns = json.dumps({"subjects": SUBJECTS, "fits": fits})
    run("node", "--test", "client.test.mjs", PATTERNS=patterns, ERRORS=json.dumps(errors))


@pytest.mark.parametrize(("script", "most"), [("polybus.js", 6144), ("polybus-frames.js", 4096)])
def test_the_scripts_are_small(script: str, most: int) -> None:
    require_node("esbuild")
    program = str(NODE / "node_modules" / ".bin" / "esbuild")
    small = run(program, "--minify", "--format=esm", "--target=es2022", str(SCRIPTS / script))
    size = len(gzip.compress(small.encode(), 9))
    assert size <= most
    assert "import" not in small.split("/*")[0][:100]


def test_the_client_and_a_real_server() -> None:
    require_node("ws8")
    modules = f"file://{NODE / 'node_modules' / 'ws8' / 'wrapper.mjs'}"
    run("node", "--test", "server.test.mjs", PYTHON=sys.executable, WS=modules, PORT=str(free_port()))


def test_the_package_is_imported_in_node_and_by_a_bundler(project: Path) -> None:
    imports = "import { connect, NotFound } from 'polybus'; import { pump } from 'polybus/frames';"
    (project / "program.mjs").write_text(f"{imports} console.log(typeof connect, typeof pump, new NotFound('').name)")
    assert run("node", "program.mjs", cwd=project) == "function function NotFound\n"
    esbuild = str(NODE / "node_modules" / ".bin" / "esbuild")
    bundle = run(esbuild, "program.mjs", "--bundle", "--minify", "--format=esm", cwd=project)
    (project / "bundle.mjs").write_text(bundle)
    assert run("node", "bundle.mjs", cwd=project) == "function function NotFound\n"  # minified, too
    package = json.loads((project / "node_modules" / "polybus" / "package.json").read_text())
    assert package["version"] == version("polybus")


class User(msgspec.Struct):
    id: int
    name: str
    kind: Literal["a", "b"] = "a"
    tags: list[str] = []
    boss: User | None = None


class Get(msgspec.Struct):
    id: int
    deep: bool = False


def shop() -> Bus:
    bus = Bus()

    @bus.handle("user.get")
    def get(body: Get) -> User:
        return User(body.id, "Ann")

    @bus.handle("user.count")
    def count() -> int:
        return 1

    @bus.handle("user.watch")
    async def watch(start: int) -> AsyncIterator[User]:
        yield User(start, "Ann")

    @bus.on("seen.*")
    def seen(count: int) -> None: ...

    bus.publishes(Subject("order.placed", User))
    bus.publishes(Subject("reading.*", int))
    bus.publishes(Subject("reading.text", str))
    return bus


def test_the_types_of_a_bus_are_strict(project: Path) -> None:
    (project / "shop.ts").write_text(typescript(document(shop(), title="shop")))
    shutil.copy(HERE / "typed.ts", project)
    tsc = str(NODE / "node_modules" / ".bin" / "tsc")
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "esnext", "--lib", "esnext,dom"]
    run(tsc, *options, "typed.ts", cwd=project)
