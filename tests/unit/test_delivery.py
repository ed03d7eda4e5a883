"""Dead letters as publications."""

import anyio
import pytest

from polybus import Bus, Code, Forbidden
from polybus.delivery import publish_dead_letters
from polybus.protocols import UProtocol
from polybus.testing import pair
from tests.support import BOUND


async def test_dead_letters_are_published_with_code_and_header_and_without_secrets() -> None:
    bus = Bus(authorize=lambda peer, verb, subject: subject != "secret")
    bus.handle("secret", inline=True)(lambda: None)
    async with pair(bus, protocol=UProtocol(token="s3cret")) as client, bus.subscribe("dead.letters") as letters:
        async with anyio.create_task_group() as group:
            group.start_soon(publish_dead_letters, bus)
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(Forbidden):
                await client.request("secret", {"a": 1})
            letter = (await letters.receive(BOUND)).body
            group.cancel_scope.cancel()
    assert letter["subject"] == "secret"
    assert (letter["kind"], letter["code"]) == ("request", Code.PERMISSION_DENIED)
    assert letter["attributes"]["priority"] == "CS4"
    assert "s3cret" not in repr(letter)
