"""Recordings of UMessages: what is read from them, and what must not be in them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from polybus import Bus, Code, NotFound, connect
from polybus.capture.protocols import headers_only
from polybus.capture.protocols.up import blank
from polybus.capture.record.redaction import Redaction, redact_default
from polybus.capture.rows import RowHeader
from polybus.capture.schema import DIRECTION_OUT
from polybus.protocols import Up
from tests.vectors import up_vectors as vectors

from .folders import events_in

WITH_TOKEN = vectors.REQUEST.replace(b"\x52\x01t", b"\x52\x07hunter2").replace(b"\x0a\x43", b"\x0a\x49")
NAMES = {"user.get": 0x7, "news.today": 0x8007, "user.touched": 0x8008}


def test_the_token_is_blanked_and_all_else_stays() -> None:
    clean = redact_default("up", WITH_TOKEN)
    assert clean == WITH_TOKEN.replace(b"hunter2", b"*******")
    end = RowHeader(DIRECTION_OUT, protocol="up", options="{}")
    rows = pa.array([WITH_TOKEN, vectors.PUBLICATION])
    frames, _, count = Redaction("default", bodies=True).apply([end], np.zeros(2, np.int32), rows)
    assert (frames[0].as_py(), frames[1].as_py(), count) == (clean, vectors.PUBLICATION, 1)


def test_a_token_is_found_wherever_it_stands_and_without_its_end() -> None:
    attributes, rest = WITH_TOKEN[2 : 2 + 0x49], WITH_TOKEN[2 + 0x49 :]
    behind = rest + b"\x0a" + bytes((len(attributes),)) + attributes
    long_tag = b"\x12\x01x\x0a\x0c" + b"\xd2\x00\x07hunter2" + b"\x28\x05"
    twice = b"\x0a\x09\x52\x07hunter2" * 2
    for frame in (behind, long_tag, twice, WITH_TOKEN[: WITH_TOKEN.index(b"er2")]):
        clean = blank(frame)
        assert b"hunt" not in clean
        assert len(clean) == len(frame)


def test_without_its_body_a_frame_still_says_all_else() -> None:
    kept = headers_only("up", "{}", vectors.REQUEST)
    assert b'"p"' not in kept
    (message,) = Up().codec().decode(kept)
    (whole,) = Up().codec().decode(vectors.REQUEST)
    assert message.attributes == {name: value for name, value in whole.attributes.items() if name != "payload_format"}  # type: ignore[union-attr]  # messages, no events
    assert headers_only("up", "{}", b"\xff") == b""


async def test_a_recording_has_requests_answers_errors_and_publications_and_no_token(tmp_path: Path) -> None:
    bus = Bus()

    @bus.handle("user.get")
    async def get(query: dict[str, Any]) -> Any:
        await bus.publish("news.today", query)
        if query["id"] != 7:
            raise NotFound("no such user", reason="no_user")
        return {"name": "Ann"}

    server = Up(entity="//house/1/1", names=NAMES)
    client = Up(entity="//phone/2/1", peer="//house/1/1", names=NAMES, token="s3cret-token", priorities={"user.>": "CS5"})
    async with bus.serve("up+memory://captured", protocol=server) as listener:
        async with connect(listener.url, protocol=client, record=tmp_path / "captures") as asker:
            async with asker.subscribe("news.today") as news:
                assert await asker.request("user.get", {"id": 7}) == {"name": "Ann"}
                with pytest.raises(NotFound):
                    await asker.request("user.get", {"id": 8})
                assert (await anext(news)).body == {"id": 7}
            await asker.notify("user.touched", {"id": 7})
    assert b"s3cret" not in b"".join(path.read_bytes() for path in (tmp_path / "captures").rglob("*") if path.is_file())
    events = events_in(tmp_path / "captures")
    asked, answers, notified, published = (
        [event for event in events if event["kind"] == kind] for kind in ("request", "response", "notify", "publish")
    )
    method, us = "//house/1/1/7", "//phone/2/1/0"
    assert [(one["subject"], one["source"], one["priority"], one["reply_to"]) for one in asked] == [(method, us, "CS5", us)] * 2
    assert all(0 < event["ttl_ms"] <= 30_000 for event in asked)
    assert [event["correlation_id"] for event in answers] == [event["id"] for event in asked]
    assert [(event["code"], event["subject"]) for event in answers] == [(0, method), (int(Code.NOT_FOUND), method)]
    assert [(event["subject"], event["data"]) for event in notified] == [("//phone/2/1/8008", b'{"id":7}')]
    assert [event["subject"] for event in published] == ["//house/1/1/8007"] * 2
