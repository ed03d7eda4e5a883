"""connect(wait=...)"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from polybus import Backoff, Bus, ConnectFailed, connect
from polybus.events import LinkUp
from polybus.protocols import Ubre
from tests.refusal import refused
from tests.support import next_event


class Keyed:
    def __init__(self, path: str) -> None:
        self.files = {path: "the key"}
        self.read: list[str] = []

    def with_files(self, texts: Mapping[str, str]) -> Ubre:
        self.read += texts.values()
        if "bad" in self.read:
            raise ValueError("the key is not good")
        return Ubre()

    def __getattr__(self, name: str) -> Any:
        return getattr(Ubre(), name)


@pytest.mark.native
async def test_the_files_of_a_protocol_are_read_before_each_attempt(tmp_path: Path) -> None:
    path, server = tmp_path / "key", Bus()
    keyed: Any = Keyed(str(path))
    text = "the key cannot be read: No such file"
    await refused(connect("ubre+memory://keyed", protocol=keyed), ConnectFailed, match=text)
    path.write_text("first")
    async with server.serve("ubre+memory://keyed") as listener:
        async with connect("ubre+memory://keyed", protocol=keyed, backoff=Backoff(initial=0.001)) as bus:
            events = bus.events()
            path.write_text("second")
            await listener.peers[0].aclose()
            await next_event(events, LinkUp)
            assert keyed.read == ["first", "second"]
        path.write_text("bad")
        await refused(connect("ubre+memory://keyed", protocol=keyed), ConnectFailed, match="the key is not good")
