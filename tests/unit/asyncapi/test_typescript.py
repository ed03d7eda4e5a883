"""The types of a document in TypeScript; that tsc takes them, tests/integration/javascript shows."""

from typing import Any, Literal

import msgspec
import pytest

from polybus import Bus, Subject
from polybus.asyncapi import document, typescript


class Part(msgspec.Struct):
    name: str
    size: Literal["s", "m"] = "s"


class Short(msgspec.Struct, omit_defaults=True):
    count: int = 0


class Free(msgspec.Struct):
    pair: tuple[int, str]
    by_name: dict[str, list[Part]]
    key: str = msgspec.field(name="a-key")


def lines_of(bus: Bus) -> list[str]:
    return [line.strip() for line in typescript(document(bus, title="the shop")).splitlines() if line]


def test_what_may_be_left_out_is_there_in_answers_unless_the_class_omits_it() -> None:
    bus = Bus()

    @bus.handle("part")
    def part(body: Part) -> Part:
        return body

    @bus.handle("short")
    def short(body: Short) -> Short:
        return body

    lines = lines_of(bus)
    assert 'export interface Part { name: string; size: ("m" | "s") }' in lines
    assert 'export interface PartGiven { name: string; size?: ("m" | "s") }' in lines
    assert "export interface Short { count?: number }" in lines
    assert '"part": { body: PartGiven; answer: Part }' in lines
    assert '"short": { body: Short; answer: Short }' in lines


def test_each_style_has_its_place() -> None:
    bus = Bus()

    @bus.handle("one")
    def one() -> None:
        """Says */ nothing.

        More of it.
        """

    @bus.handle("many")
    async def many(body: Free) -> Any:
        yield body

    bus.handle("none")(lambda body: None)

    @bus.on("a.*.b")
    def any_x(body: int) -> None: ...

    @bus.on("a.x.b")
    def of_x(body: str) -> None: ...

    bus.on(">")(lambda body: None)
    bus.handle(7)(lambda body: None)
    bus.publishes(Subject("news", bytes))
    lines = lines_of(bus)
    assert lines[lines.index("export interface TheShop {") :] == [
        "export interface TheShop {",
        "requests: {",
        '"none": { body?: any; answer: any }',
        "/** Says * / nothing. */",
        '"one": { body?: null; answer: null }',
        "}",
        "streams: {",
        '"many": { body: FreeGiven; item: any }',
        "}",
        "publications: {",
        '"news": string',
        "}",
        "accepts: {",
        '"a.x.b": string',
        "} & {",
        "[subject: `a.${string}.b`]: number",
        "[subject: string]: any",
        "}",
        "}",
    ]
    free = 'export interface FreeGiven { pair: [number, string]; by_name: { [key: string]: PartGiven[] }; "a-key": string }'
    assert free in lines


@pytest.mark.parametrize("document", [None, {}, {"asyncapi": "3.0.0"}, []], ids=str)
def test_what_is_not_a_document_is_refused(document: Any) -> None:
    with pytest.raises(TypeError, match=r"typescript\(.*\): pass a document that polybus has generated"):
        typescript(document)
