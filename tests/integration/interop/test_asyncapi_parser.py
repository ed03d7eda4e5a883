"""The parser of AsyncAPI itself (npm) takes documents of everything that there is."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE
from typing import Annotated, Any, Literal, Protocol

import msgspec
import pydantic
import pytest

from polybus import Bus
from polybus.asyncapi import document, to_text
from polybus.asyncapi.document import servers_of
from tests.unit.asyncapi.shop import Users, make_bus

from .node_peer import require_node

SERVERS = [
    "ubre+wss://example.org/bus",
    "csb+tls://example.org:9000",
    "jrep+https://example.org/errai",
    "nats+tls://example.org",
    "uprotocol+ws://example.org/up",
]
INFORMATION = 2
"""Severity of what is no error and no warning."""


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Text(pydantic.BaseModel):
    kind: Literal["text"]


class Picture(pydantic.BaseModel):
    kind: Literal["picture"]


class Drawings(Protocol):
    async def draw(self, form: Circle | Square) -> None: ...

    async def read(self) -> Annotated[Text | Picture, pydantic.Field(discriminator="kind")]: ...


Parse = Callable[..., list[dict[str, Any]]]
Check = Callable[[dict[str, dict[str, Any]]], None]


@pytest.fixture(scope="module")
def parsed() -> Iterator[Parse]:
    """What the parser says of documents: one process for all, as its rules take longer to load than most documents."""
    require_node("@asyncapi/parser")
    folder = Path(__file__).parent / "node"
    with subprocess.Popen(["node", "asyncapi.mjs"], cwd=folder, stdin=PIPE, stdout=PIPE, text=True) as node:
        asked, answers = node.stdin, node.stdout
        assert asked is not None and answers is not None

        def parse(*texts: str) -> list[dict[str, Any]]:
            print(json.dumps(texts), file=asked, flush=True)
            answer = answers.readline()
            assert answer, f"the parser ended with {node.wait()}"
            said: list[dict[str, Any]] = json.loads(answer)
            return said

        yield parse
        asked.close()
        assert node.wait() == 0


@pytest.fixture
def check(parsed: Parse) -> Check:
    def check(documents: dict[str, dict[str, Any]]) -> None:
        for (name, made), said in zip(documents.items(), parsed(*map(to_text, documents.values())), strict=True):
            assert [problem for problem in said["problems"] if problem["severity"] < INFORMATION] == [], name
            assert sorted(said["operations"]) == sorted(made["operations"]), name
            assert sorted(said["replies"]) == sorted(key for key, one in made["operations"].items() if "reply" in one), name

    return check


def test_a_document_with_everything_is_taken(check: Check) -> None:
    servers = servers_of(SERVERS)
    check(
        {
            "bus": document(make_bus(authorize=lambda peer, verb, subject: True)),
            "servers": document(make_bus(), servers=servers),
            "contract": document(Users, prefix="user", servers=servers),
            "empty": document(Bus()),
            "tagged": document(Drawings),
            **{protocol: document(make_bus(), protocol=protocol) for protocol in ("ubre", "csb", "jrep", "nats", "uprotocol")},
        }
    )


def test_what_is_wrong_is_seen(parsed: Parse) -> None:
    made = document(make_bus())
    made["operations"]["user.get"]["channel"]["$ref"] = "#/channels/nowhere"
    made["operations"]["user.get"]["action"] = "answer"
    (said,) = parsed(to_text(made))
    assert said["operations"] is None
    assert {problem["severity"] for problem in said["problems"]} >= {0}
