"""The text of a deadline: a server that has never said a word perhaps speaks something else."""

from __future__ import annotations

import anyio
import pytest

from polybus import Bus, DeadlineExceeded, connect
from polybus.testing import pair
from tests.loops import virtual_time  # noqa: F401

pytestmark = pytest.mark.anyio


def slow() -> Bus:
    bus = Bus()

    @bus.handle("slow")
    async def slow() -> None:
        await anyio.sleep(60)

    bus.handle("quick", inline=True)(lambda: 1)
    return bus


@pytest.mark.parametrize("url", ["csb+memory://other-words", "ubre+memory://other-words?format=binary"])
async def test_a_server_that_does_not_understand_is_suspected_to_speak_something_else(url: str) -> None:
    async with slow().serve("ubre+memory://other-words"), connect(url) as client:
        protocol = url.partition("+")[0]
        with pytest.raises(DeadlineExceeded, match=f"nothing has come over this link yet: .* speak {protocol}, in"):
            await client.request("quick" if protocol == "ubre" else 7, b"" if protocol == "csb" else None, timeout=1)


async def test_a_handler_that_is_slow_is_the_one_to_look_at_where_the_server_has_been_heard() -> None:
    async with pair(slow()) as client:
        await client.request("quick")
        with pytest.raises(DeadlineExceeded, match=r"raise timeout= or look at the handler$"):
            await client.request("slow", timeout=1)
