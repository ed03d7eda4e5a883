"""The transport without a fabric: samples that wait while filters change."""

from typing import Any, cast

import pytest
from attrs import define, field

from polybus import Limits
from polybus.plugins import Host, Receiver
from polybus.protocols import Up
from polybus.transports.zenoh.address import zenoh_address
from polybus.transports.zenoh.transport import ZenohTransport
from tests.unit.protocols.up.test_session import published

pytestmark = pytest.mark.anyio

NARROW, WIDE, TO_US = "up/device2/CD/0/4/80CD/{}/{}/{}/{}/{}", "up/*/*/*/*/*/{}/{}/{}/{}/{}", "up/*/*/*/*/*/device1/10AB/0/3/*"


@define
class Bus:
    """The bus as a transport sees it, and what it has been given."""

    limits: Limits = field(factory=Limits)
    frames: list[bytes] = field(factory=list)

    def time(self) -> float:
        return 0.0

    def call_soon(self, function: Any) -> None:
        function()

    def frames_received(self, frames: list[bytes]) -> None:
        self.frames += frames

    def pause_writing(self) -> None:
        """Nothing is written."""

    def resume_writing(self) -> None:
        """Nothing is written."""

    def closed(self, why: object) -> None:
        """Nobody waits for it."""


@pytest.mark.parametrize("left", [[TO_US, WIDE], [TO_US, NARROW], [TO_US, NARROW, WIDE]])
async def test_what_several_filters_let_through_comes_once_when_one_of_them_goes_meanwhile(left: list[str]) -> None:
    bus, fabric = Bus(), Up(entity="//device1/10AB/3").fabric
    transport = ZenohTransport(zenoh_address("zenoh://127.0.0.1:1"), fabric, cast("Host", bus), dialled=False)
    transport.start(cast("Receiver", bus))
    transport.hear([TO_US, NARROW, WIDE])
    await transport.written()
    transport.pause_reading()
    sample = fabric.sample(published())
    assert sample.key == NARROW
    for expression in (NARROW, WIDE):
        transport.node.inbox.add("device2", expression, sample)
    transport.hear(left)
    await transport.written()
    transport.resume_reading()
    transport.close()
    await transport.ended.wait()
    assert len(bus.frames) == 1
