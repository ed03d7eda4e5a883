"""A peer that speaks UBRE as its document has it, with the method in the body or with no method at all."""

from typing import Any

import anyio
import pytest

from polybus import Bus
from tests.integration.interop.raw_websocket import raw_client
from tests.support import BOUND

pytestmark = pytest.mark.anyio


async def test_the_body_names_the_subject_and_any_other_goes_to_the_handler_of_the_empty_one() -> None:
    bus = Bus()

    @bus.handle("user.get")
    async def get(body: dict[str, int]) -> dict[str, Any]:
        return {"user": body["id"]}

    @bus.handle("")
    async def whatever(body: Any) -> Any:
        return {"whatever": body}

    async with bus.serve("ubre+ws://127.0.0.1:0/?dialect=spec") as listener, raw_client(listener.url) as raw:
        with anyio.fail_after(BOUND):
            await raw.send(
                {"request": "1", "body": {"subject": "user.get", "body": {"id": 7}}},
                {"request": "2", "body": [1, 2]},
                {"request": "3"},
            )
            answers = [await raw.receive() for _ in range(3)]
    assert sorted(answers, key=lambda answer: str(answer["success"])) == [
        {"success": "1", "body": {"user": 7}},
        {"success": "2", "body": {"whatever": [1, 2]}},
        {"success": "3", "body": {"whatever": None}},
    ]
