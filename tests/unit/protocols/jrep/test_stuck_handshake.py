"""A client that does not come to the end of its handshake, in virtual time."""

import json
from typing import Any

import pytest

from polybus import Bus, Limits
from tests.loops import virtual_time  # noqa: F401
from tests.unit.transports.support import dial, running


def command(verb: str, **parts: str) -> bytes:
    return json.dumps([{"ToSubject": "ServerBus", "CommandType": verb, **parts}]).encode()


@pytest.mark.parametrize("words", [[], ["ConnectToQueue"], ["ConnectToQueue", "RemoteSubscribe"], ["Heartbeat"]], ids=str)
async def test_a_client_that_stops_in_the_middle_costs_a_handshake_s_time(anyio_backend: Any, words: list[str]) -> None:
    """Also one that keeps saying something: what counts is that the federation does not come about."""
    bus = Bus(limits=Limits(handshake_timeout=0.5))
    async with running(anyio_backend) as host, bus.serve("jrep+memory://stuck") as listener:
        good, peer = [await dial(host, listener.url.partition("+")[2]) for _ in range(2)]
        good.transport.send(command("Associate", RemoteServices="ClientBus,ClientBusErrors"))
        for word in words:
            peer.transport.send(command(word, Subject="news"))
        await peer.end()
        assert good.why is None
        (finish,) = [message for frame in good.frames for message in json.loads(frame)]
        assert finish["CommandType"] == "FinishAssociation"
        assert len(bus.peers) == 1
