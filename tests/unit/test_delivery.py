"""Dead letters as publications."""

from typing import Any

import anyio
import pytest

from polybus import Bus, Code, Forbidden
from polybus.delivery import publish_dead_letters
from polybus.protocols import UProtocol
from polybus.testing import pair
from tests.support import BOUND

pytestmark = pytest.mark.anyio


async def test_dead_letters_are_published_with_code_and_header_and_without_secrets() -> None:
    bus = Bus()

    def nobody(peer: Any, verb: str, subject: Any) -> bool:
        return bool(subject != "secret")

    bus = Bus(authorize=nobody)

    @bus.handle("secret")
    async def secret() -> None:
        pass

    with anyio.fail_after(BOUND):
        async with pair(bus, protocol=UProtocol(token="s3cret")) as client:
            async with bus.subscribe("dead.letters") as letters, anyio.create_task_group() as group:
                group.start_soon(publish_dead_letters, bus)
                await anyio.wait_all_tasks_blocked()
                with pytest.raises(Forbidden):
                    await client.request("secret", {"a": 1})
                letter = (await anext(letters)).body
                group.cancel_scope.cancel()
    assert letter["subject"] == "secret"
    assert (letter["kind"], letter["code"]) == ("request", Code.PERMISSION_DENIED)
    assert letter["attributes"]["priority"] == "CS4"
    assert "s3cret" not in repr(letter)
