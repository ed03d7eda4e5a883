"""Recordings of connections to a NATS server: what is read from them, and what must not be in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from polybus import Bus, Code, NotFound, connect
from polybus.capture.protocols import headers_only
from polybus.capture.record.redaction import Redaction, redact_default
from polybus.capture.rows import RowHeader
from polybus.capture.schema import DIRECTION_OUT
from polybus.testing.nats_engine import NatsEngine
from tests.support import bounded

from .folders import events_in

pytestmark = pytest.mark.anyio

SECRETS = ("pass", "auth_token", "jwt", "sig")


@pytest.mark.parametrize("name", SECRETS)
@pytest.mark.parametrize("verb", [b"CONNECT", b"connect"])
def test_credentials_of_connect_are_blanked(name: str, verb: bytes) -> None:
    frame = verb + b' {"user":"ann","%b":"hunter2\\"x","name":"polybus"}\r\n' % name.encode()
    clean = redact_default("nats", frame)
    assert b"hunter2" not in clean
    assert len(clean) == len(frame)
    assert b'"user":"ann"' in clean
    end = RowHeader(DIRECTION_OUT, protocol="nats", options="{}")
    frames, _, count = Redaction("default", bodies=True).apply([end], np.zeros(2, np.int32), pa.array([frame, b"PING\r\n"]))
    assert (frames[0].as_py(), frames[1].as_py(), count) == (clean, b"PING\r\n", 1)


def test_headers_with_secret_names_are_blanked_and_the_payload_like_all_others() -> None:
    block = b"NATS/1.0\r\nX-Api-Key: hunter2\r\nCookie:a=hunter2\r\nX-Kind: flash\r\n\r\n"
    frame = b'HPUB a r %d %d\r\n%b{"token":"hunter2"}\r\n' % (len(block), len(block) + 19, block)
    clean = redact_default("nats", frame)
    assert b"hunter2" not in clean
    assert b"X-Kind: flash" in clean
    assert len(clean) == len(frame)


@pytest.mark.parametrize(
    ("frame", "kept"),
    [
        (b"PUB a.b r 5\r\nhello\r\n", b"PUB a.b r 0\r\n\r\n"),
        (b"MSG a 2 5\r\nhello\r\n", b"MSG a 2 0\r\n\r\n"),
        (b"HMSG a 2 20 25\r\nNATS/1.0\r\nA: b1\r\n\r\nhello\r\n", b"HMSG a 2 19 19\r\nNATS/1.0\r\nA: b1\r\n\r\n\r\n"),
        (b"SUB a q 3\r\n", b"SUB a q 3\r\n"),
        (b"-ERR 'x'\r\n", b"-ERR 'x'\r\n"),
        (b"nonsense", b"nonsense"),
        (b"HMSG a\r\n", b""),
    ],
)
def test_frames_without_their_bodies(frame: bytes, kept: bytes) -> None:
    frame = frame.replace(b"20 25", b"19 24")
    assert headers_only("nats", "{}", frame) == kept


def test_without_bodies_the_text_of_an_error_is_left_out() -> None:
    block = b"NATS/1.0\r\nNats-Service-Error: private\r\nNats-Service-Error-Code: 5\r\nPolybus-Text: private\r\n\r\n"
    kept = headers_only("nats", "{}", b"HMSG _INBOX.a.b 1 %d %d\r\n%bdetail\r\n" % (len(block), len(block) + 6, block))
    assert b"private" not in kept and b"detail" not in kept
    assert b"Nats-Service-Error-Code: 5" in kept


@bounded
async def test_a_recording_has_requests_answers_and_errors_and_no_secret(tmp_path: Path) -> None:
    bus = Bus()

    @bus.handle("user.get")
    async def get(query: dict[str, Any]) -> Any:
        if query["id"] != 7:
            raise NotFound("no such user", reason="no_user")
        return {"name": "Ann"}

    async with NatsEngine(token="s3cret-token") as engine:
        url = engine.url.replace("://", "://s3cret-token@")
        async with connect(url, bus=bus), connect(url, record=tmp_path / "captures") as client:
            async with client.subscribe("news.*"):
                assert await client.request("user.get", {"id": 7}) == {"name": "Ann"}
                with pytest.raises(NotFound):
                    await client.request("user.get", {"id": 8})
                await client.publish("news.today", {"title": "x"}, headers={"x-kind": "flash"})
    assert b"s3cret" not in b"".join(path.read_bytes() for path in (tmp_path / "captures").rglob("*") if path.is_file())
    events = events_in(tmp_path / "captures")
    asked = {event["correlation_id"]: event for event in events if event["kind"] == "request"}
    answers = [event for event in events if event["kind"] == "response"]
    assert len(asked) == len(answers) == 2
    assert {event["correlation_id"] for event in answers} == set(asked)
    assert [event["code"] for event in answers] == [0, int(Code.NOT_FOUND)]
    assert {event["subject"] for event in asked.values()} == {"user.get"}
    assert all(0 < event["ttl_ms"] <= 30_000 for event in asked.values())
    # Once as it leaves, and perhaps once as the server brings it back: for groups of this bus it does.
    assert {event["subject"] for event in events if event["kind"] == "publish"} == {"news.today"}
