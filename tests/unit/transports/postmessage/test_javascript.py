"""Ports of JavaScript, as far as that shows without a browser: a stand-in gives what Pyodide gives of each kind of data."""

import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from polybus import Bus
from polybus.transports.postmessage import PortTransport
from tests.support import eventually


class JsProxy:
    """An object of JavaScript, with its members; of a buffer there is `to_bytes`."""

    def __init__(self, **members: Any) -> None:
        self.__dict__.update(members)

    def destroy(self) -> None:
        """Nothing holds on to it."""


class Port(JsProxy):
    """A MessagePort: what the other end posts is told to `onmessage`."""

    onmessage: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.posted: list[Any] = []
        self.closed = False

    def postMessage(self, data: Any, transfer: Any = None) -> None:
        self.posted.append(data)

    def close(self) -> None:
        self.closed = True

    def tell(self, data: Any) -> None:
        if self.onmessage is not None:
            self.onmessage(SimpleNamespace(data=data))


def run_js(text: str) -> Any:
    if "event.data" in text:
        return lambda callback: lambda event: callback(event.data)
    return lambda callback: lambda *event: callback()


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Any:
    package, code, ffi = ModuleType("pyodide"), ModuleType("pyodide.code"), ModuleType("pyodide.ffi")
    code.run_js = run_js  # type: ignore[attr-defined]
    ffi.JsProxy = JsProxy  # type: ignore[attr-defined]
    ffi.create_proxy = _proxy  # type: ignore[attr-defined]
    ffi.to_js = lambda data: JsProxy(buffer=data)  # type: ignore[attr-defined]
    for module in (package, code, ffi):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return Port()


def _proxy(function: Any) -> Any:
    def called(*given: Any) -> Any:
        return function(*given)

    called.destroy = lambda: None  # type: ignore[attr-defined]
    return called


def _fails() -> bytes:
    raise MemoryError


GARBAGE = [
    *(pytest.param(data, id=repr(data)) for data in (5, 300, -1.5, True, None)),
    pytest.param(JsProxy(), id="an object"),
    pytest.param(JsProxy(to_bytes=5), id="an object with a member to_bytes"),
    pytest.param(JsProxy(to_bytes=lambda: "text"), id="one whose bytes are text"),
    pytest.param(JsProxy(to_bytes=_fails), id="a buffer that does not fit into memory"),
]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # as in a browser
@pytest.mark.parametrize("data", GARBAGE)
async def test_what_is_neither_text_nor_a_buffer_is_no_frame_and_ends_that_connection_alone(
    port: Any, data: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bus = Bus()
    with caplog.at_level(logging.ERROR):
        async with bus.serve(PortTransport(port), protocol="csb"):
            port.tell('\0hi {"v":1,"protocol":"csb"}')
            await eventually(lambda: len(bus.peers) == 1)
            port.tell(data)
            await eventually(lambda: port.closed)
            assert str(port.posted[-1]).startswith("\0bye 1003 ")
            assert "is not a frame: a port carries text and bytes" in str(port.posted[-1])
    assert not caplog.records


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_buffer_and_text_with_half_a_pair_of_surrogates_are_frames(port: Any) -> None:
    bus = Bus()
    async with bus.serve(PortTransport(port), protocol="ubre"):
        port.tell('\0hi {"v":1,"protocol":"ubre"}')
        await eventually(lambda: len(bus.peers) == 1)
        port.tell('{"\ud800')
        await eventually(lambda: bus.stats().malformed == 1)
        port.tell(JsProxy(to_bytes=lambda: b"\xff"))
        await eventually(lambda: port.closed)
        assert str(port.posted[-1]).startswith("\0bye 1003 binary frames")
