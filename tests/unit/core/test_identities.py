"""What `authenticate` gives: who is let in, and as whom."""

from __future__ import annotations

from typing import Any

import pytest

from polybus import Bus, Context, Identity, Unauthorized, connect
from tests.support import bounded

pytestmark = pytest.mark.anyio


class Array:
    """Has no truth value."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


ARRAY = Array()


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, False),
        (False, False),
        ("", True),
        (0, True),
        (0.0, True),
        (b"", True),
        ((), True),
        ({}, True),
        (Identity(), True),
        (Identity(""), True),
        (Identity(0, key=""), True),
    ],
)
@bounded
async def test_what_is_empty_names_nobody_and_refuses(
    given: Any, told: bool, later: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def asked(handshake: Any) -> Any:
        return given

    async with Bus(authenticate=asked if later else lambda handshake: given).serve("ubre+memory://empty-identity") as server:
        with pytest.raises(Unauthorized, match="not authenticated"):
            async with connect(server.url):
                pass
    assert any("which identifies no client" in record.getMessage() for record in caplog.records) == told


@pytest.mark.parametrize(
    ("given", "identity"),
    [("ann", "ann"), (1, 1), ({"id": 0}, {"id": 0}), (ARRAY, ARRAY), (Identity("", key="ann"), ""), (True, None)],
)
@bounded
async def test_any_other_value_is_the_identity_and_true_lets_in_without_one(given: Any, identity: Any) -> None:
    bus = Bus(authenticate=lambda handshake: given)
    seen: list[Any] = []

    @bus.handle("who")
    async def who(ctx: Context) -> None:
        seen.append(ctx.identity)

    async with bus.serve("ubre+memory://some-identity") as server, connect(server.url) as client:
        await client.request("who")
    assert seen == [identity] and type(seen[0]) is type(identity)
