"""The handshake by which a page and a frame in it get a port: the child speaks first, in the words of ``polybus.js``.

The frame posts a hello with a fresh nonce to its host, again and again, until a port comes. The host answers only its own
frame, of the one origin that it expects, each nonce once, with an epoch that counts up. The frame says that it has taken the
port, and only then it counts: a hello may come late, when its page is gone. From then on only the port is used.
"""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final, Literal, Self

import anyio
from attrs import define, field, frozen

from ...errors import ConnectFailed
from ...transports.postmessage._channel import InMemoryPort, MessageChannel, MessageEvent
from ...transports.postmessage._control import VERSION, bye
from ...transports.postmessage._origins import check_origin
from ...transports.postmessage._port import PortInfo
from .window import Frame, Window, WindowProxy

TAG: Final = "polybus"
INTERVAL: Final = 0.05
"""Seconds between two hellos."""
_REMEMBERED: Final = 16
"""Nonces of a frame that have been answered, so that a late copy does not open another port."""
_OFFERED: Final = 4
"""Ports of a frame that no page has taken yet."""


@frozen
class StrangeHello:
    """Words of the handshake that were not answered."""

    origin: str
    reason: Literal["origin", "source"]
    """It came from the frame, but from a page of another origin; or from a window that is no served frame."""


@define(eq=False)
class ServedFrame:
    """The ports of a frame, one for each page that is loaded into it: an async iterator for `PortTransport`.

    A port that nobody has taken gives way to the next one.
    """

    _frame: Frame
    name: str
    """The origin of its pages."""
    _on_port: Callable[[InMemoryPort], Any] | None
    _on_reject: Callable[[StrangeHello], Any] | None
    rejected: int = field(default=0, init=False)
    """Hellos that were not answered."""
    epoch: int = field(default=0, init=False)
    """Ports that were offered."""
    _nonces: deque[str] = field(factory=lambda: deque(maxlen=_REMEMBERED), init=False)
    _offers: dict[str, tuple[int, InMemoryPort]] = field(factory=dict, init=False)
    _port: InMemoryPort | None = field(default=None, init=False)
    _fresh: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _news: anyio.Event = field(factory=anyio.Event, init=False)

    def __attrs_post_init__(self) -> None:
        self._frame.host.add_listener(self._heard)
        self._frame.host.served.append(self)

    def close(self) -> None:
        """Answer no more hellos, and close the port."""
        if self._closed:
            return
        self._closed = True
        self._frame.host.remove_listener(self._heard)
        self._frame.host.served.remove(self)
        self._withdraw(self.epoch)
        self._retire("the host has closed the frame's port")
        self._tell()

    def is_of(self, window: Any) -> bool:
        return window is self._frame.content_window

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> InMemoryPort:
        """The next port.

        Raises:
            StopAsyncIteration: It is closed.
        """
        while not self._fresh:
            if self._closed:
                raise StopAsyncIteration
            await self._news.wait()
        assert self._port is not None
        self._fresh = False
        return self._port

    def _heard(self, event: MessageEvent) -> None:
        said = event.data
        if not (isinstance(said, dict) and said.get("tag") == TAG and said.get("v") == VERSION):
            return
        kind, nonce = said.get("type"), said.get("nonce")
        if kind not in ("hello", "taken"):
            return
        window = self._frame.content_window
        if window is None or event.source is not window:
            if not any(other.is_of(event.source) for other in self._frame.host.served):
                self._reject(StrangeHello(event.origin, "source"))
        elif event.origin != self.name:
            self._reject(StrangeHello(event.origin, "origin"))
        elif not isinstance(nonce, str):
            return
        elif kind == "taken":
            self._taken(nonce)
        elif 0 < len(nonce) <= 64 and nonce not in self._nonces:
            self._offer(window, nonce)

    def _offer(self, window: WindowProxy, nonce: str) -> None:
        """A hello may be late, and its page gone: the port counts only when a page has it."""
        self._nonces.append(nonce)
        self.epoch += 1
        self._withdraw(self.epoch - _OFFERED)
        channel = MessageChannel(shuffle=self._frame.host.shuffle)
        self._offers[nonce] = self.epoch, channel.port1
        answer = _words("port", nonce, epoch=self.epoch)
        window.post_message(answer, _target(self.name), [channel.port2], source=self._frame.host)

    def _taken(self, nonce: str) -> None:
        if nonce not in self._offers:
            return
        epoch, port = self._offers.pop(nonce)
        self._withdraw(epoch)
        self._retire("a newer page of the frame took over")
        port.info = PortInfo(origin=self.name, epoch=epoch, address=f"{self.name}#{epoch}")
        self._port, self._fresh = port, True
        self._tell()
        if self._on_port is not None:
            self._on_port(port)

    def _withdraw(self, until: int) -> None:
        """Nobody is to have the ports that were offered until then."""
        for nonce, (epoch, port) in list(self._offers.items()):
            if epoch <= until:
                del self._offers[nonce]
                port.post(bye(1001, "the port was not taken in time"))
                port.close()

    def _retire(self, reason: str) -> None:
        port, self._port, self._fresh = self._port, None, False
        if port is not None:
            port.post(bye(1001, reason))
            port.close(reason)

    def _reject(self, hello: StrangeHello) -> None:
        self.rejected += 1
        if self._on_reject is not None:
            self._on_reject(hello)

    def _tell(self) -> None:
        self._news.set()
        self._news = anyio.Event()


def serve_frame(
    frame: Frame,
    *,
    origin: str,
    on_port: Callable[[InMemoryPort], Any] | None = None,
    on_reject: Callable[[StrangeHello], Any] | None = None,
) -> ServedFrame:
    """Give ports to the pages of a frame: ``connect(PortTransport(serve_frame(frame, origin=...)), protocol="ubre")``.

    Call it before the frame loads. The twin of ``serveFrame`` in ``polybus.js``.

    Args:
        frame: Whose pages.
        origin: The one origin that they must have; ``"null"`` for a sandboxed frame.
        on_port: Called with each port.
        on_reject: Called for each hello that is not answered.

    Raises:
        ValueError: `origin` is empty, a wildcard, or not exactly what a browser would say.
    """
    check_origin(origin)
    return ServedFrame(frame, origin, on_port, on_reject)


async def connect_to_host(window: Window, *, origins: Iterable[str], timeout: float = 10.0) -> InMemoryPort:
    """In a frame: the port to the page around it. The twin of ``connectToHost`` in ``polybus.js``.

    Args:
        window: The frame's own.
        origins: Those that the page around may have.
        timeout: Seconds to wait for the page.

    Raises:
        ConnectFailed: No port came in time, or there is no page around.
        ValueError: No origins, or one that is none.
    """
    allowed = tuple(origins)
    if not allowed:
        raise ValueError("origins=(): name those that the page around may have")
    for origin in allowed:
        check_origin(origin)
    parent = window.parent
    if parent is None or window.gone:
        raise ConnectFailed(window.origin, "this page is gone" if window.gone else "there is no page around this one")
    nonce, found, came = secrets.token_hex(16), list[InMemoryPort](), anyio.Event()

    def heard(event: MessageEvent) -> None:
        said = event.data
        if (
            event.source is parent
            and event.origin in allowed
            and isinstance(said, dict)
            and (said.get("tag"), said.get("type"), said.get("nonce")) == (TAG, "port", nonce)
            and len(event.ports) == 1
        ):
            epoch = said.get("epoch")
            event.ports[0].info = PortInfo(
                origin=event.origin, epoch=epoch if isinstance(epoch, int) else 1, address=f"{event.origin}#{epoch}"
            )
            found.append(event.ports[0])
            came.set()

    window.add_listener(heard)
    try:
        with anyio.move_on_after(timeout):
            while not (found or window.gone):
                for origin in allowed:
                    parent.post_message(_words("hello", nonce), _target(origin), source=window)
                with anyio.move_on_after(INTERVAL):
                    await came.wait()
    finally:
        window.remove_listener(heard)
    if not found:
        raise ConnectFailed(parent.origin, f"timed out after {timeout:g} s: no page of {', '.join(allowed)} answered")
    port = found[0]
    parent.post_message(_words("taken", nonce), _target(str(port.info.origin)), source=window)
    _say_goodbye(window, port)
    return port


def _words(type: str, nonce: str, **more: int) -> dict[str, Any]:
    """A message of the handshake."""
    return {"tag": TAG, "type": type, "v": VERSION, "nonce": nonce, **more}


def _target(origin: str) -> str:
    """There is no way to name an opaque origin; the nonce says whom a message is for."""
    return "*" if origin == "null" else origin


def _say_goodbye(window: Window, port: InMemoryPort) -> None:
    """Tell the other end of this port when the page goes."""

    def goodbye() -> None:
        for each in window.joined:
            each.post(bye(1001, "the page is gone"))

    if not window.joined:
        window.on_pagehide(goodbye)
    # A page that comes back again and again does not keep the ports that have ended.
    window.joined[:] = [*(each for each in window.joined if not each.closed), port]
