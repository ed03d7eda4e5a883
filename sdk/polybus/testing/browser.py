"""Simulates browser windows and frames in a single process, including the ``polybus-frames.js`` handshake between them.

The handshake produces ports for `polybus.transports.postmessage`. The frame keeps posting a hello with a fresh nonce to its
host until a port arrives. The host only answers hellos from its own frame with the expected origin. It answers each nonce once,
with an increasing epoch. Because a hello may arrive after its page is gone, the host only uses a port once the frame has
confirmed it. From then on, all messages go through the port.
"""

from __future__ import annotations

import errno
import logging
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlsplit

import anyio
from attrs import define, field, frozen

from ..errors import ConnectFailed
from ..plugins.tools import running_loop
from ..transports.postmessage import ArrayBuffer, InMemoryPort, MessageChannel, MessageEvent, PortInfo, Unreadable
from ..transports.postmessage.channel import later, tell, transferring
from ..transports.postmessage.connection import VERSION, bye

OPAQUE: Final = "null"
"""Origin of sandboxed pages and files. It never matches any origin, not even itself."""

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}


def origin_of(url: str) -> str | None:
    """Return a URL's origin: scheme, lower-case host, and any non-default port. Returns `None` if the URL has no origin."""
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if parts.scheme == "file":
        return OPAQUE
    if not parts.scheme or not host:
        return None
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + ("" if port in (None, _DEFAULT_PORTS.get(parts.scheme)) else f":{port}")


def check_origin(origin: str) -> None:
    """Raise `ValueError` unless `origin` is a single origin, written as browsers write it, without wildcards."""
    exact = None if "*" in origin else origin_of(origin)
    if origin != OPAQUE and (exact != origin or exact == OPAQUE):
        hint = f" (say {exact!r})" if exact not in (None, OPAQUE) else ""
        raise ValueError(
            f"origin={origin!r} must be one origin, such as https://example.org, or 'null' for a sandboxed frame{hint}"
        )


__all__ = ["Frame", "ServedFrame", "StrangeHello", "Window", "WindowProxy", "connect_to_host", "serve_frame"]

logger: logging.Logger = logging.getLogger("polybus.transports")


class WindowProxy:
    """Other pages' reference to a window. It stays valid when another page is loaded."""

    def __init__(self, window: Window | None) -> None:
        self.dropped: int = 0
        """Number of messages dropped because the page had another origin."""
        self._window = window

    @property
    def origin(self) -> str:
        """Origin of the current page."""
        return OPAQUE if self._window is None else self._window.origin

    def __repr__(self) -> str:
        return f"<WindowProxy {self.origin}>"

    def post_message(
        self, data: Any, target_origin: str, transfer: Iterable[InMemoryPort | ArrayBuffer] = (), *, source: Window
    ) -> None:
        """Post a message to the current page. The message is lost if that page is gone, or has another origin, by the time it
        arrives.

        Args:
            data: Any value that can be cloned.
            target_origin: Origin that the page must have, or a URL with that origin. Use ``"/"`` for the origin of `source`, or
                ``"*"`` for any origin.
            transfer: Objects to transfer. The sender loses them even if the message is lost.
            source: The sender.

        Raises:
            ValueError: If `target_origin` is neither an origin nor ``*``.
            DataCloneError: If the data cannot be cloned or transferred.
        """
        target = _target(target_origin, source)
        copied, ports = transferring(data, transfer)
        window = self._window
        if source.gone or window is None:
            return
        event = MessageEvent(data=copied, origin=source.origin, source=source.proxy, ports=ports)
        source._lanes[self].call(lambda: self._deliver(window, target, event))

    def _deliver(self, window: Window, target_origin: str, event: MessageEvent) -> None:
        if window is not self._window:
            return
        if target_origin != "*" and (target_origin != window.origin or target_origin == OPAQUE):
            self.dropped += 1
            logger.warning("a message for %.200s was not delivered to a page of %.200s", target_origin, window.origin)
            return
        window._take(event)

    def _show(self, window: Window | None) -> None:
        old, self._window = self._window, None
        if old is not None:
            old._unload()
        self._window = window


class _Lane:
    """Delivers messages from one window to another in order, each in its own event loop iteration."""

    def __init__(self, shuffle: Random | None) -> None:
        self._soon = later(shuffle)
        self._waiting: deque[Callable[[], None]] = deque()

    def call(self, function: Callable[[], None]) -> None:
        self._waiting.append(function)
        if len(self._waiting) == 1:
            self._soon(self._next)

    def _next(self) -> None:
        self._waiting[0]()
        self._waiting.popleft()
        if self._waiting:
            self._soon(self._next)


class Window:
    """A page as its own code sees it. When another page replaces it, its listeners are removed and its ports closed.

    Args:
        origin: Origin such as ``https://example.org``, or ``"null"`` for an opaque one.
        parent: The surrounding page.
        proxy: The reference for other pages. A new one by default.
        shuffle: Delay messages from this page, its frames and their ports by a random number of iterations. As in browsers,
            messages between two windows and on a port stay in order.

    Raises:
        ValueError: If `origin` is not in the form that browsers use.
    """

    def __init__(
        self, origin: str, parent: WindowProxy | None = None, *, proxy: WindowProxy | None = None, shuffle: Random | None = None
    ) -> None:
        check_origin(origin)
        self.shuffle: Random | None = shuffle
        self.origin: str = origin
        self.parent: WindowProxy | None = parent
        self.proxy: WindowProxy = proxy or WindowProxy(self)
        self.gone: bool = False
        """True if another page was loaded or the frame was removed. Messages that it posts no longer arrive."""
        self._listeners: dict[Callable[[MessageEvent], Any], None] = {}
        self._failing: list[Callable[[], Any]] = []
        self._hiding: list[Callable[[], Any]] = []
        self._lanes: defaultdict[WindowProxy, _Lane] = defaultdict(lambda: _Lane(shuffle))
        self._ports: list[InMemoryPort] = []
        self.served: list[Any] = []
        """Frames in this page that get ports."""
        self.joined: list[InMemoryPort] = []
        """Ports to the surrounding page. They are notified when this page goes away."""

    def __repr__(self) -> str:
        return f"<Window {self.origin}>"

    def add_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Call `callback` for every message from now on. Adding it twice has no effect."""
        self._listeners[callback] = None

    def remove_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Remove a listener. Does nothing if it isn't present."""
        self._listeners.pop(callback, None)

    def on_message_error(self, callback: Callable[[], Any]) -> None:
        """Call `callback` for each message that cannot be read. See `Unreadable`."""
        self._failing.append(callback)

    def on_pagehide(self, callback: Callable[[], Any]) -> None:
        """Call `callback` when the page is reloaded, replaced or removed. It can still post to its ports."""
        self._hiding.append(callback)

    def own(self, *ports: InMemoryPort) -> None:
        """Make ports belong to this page, as received ports do. They are then closed with the page."""
        # Drop closed ports, since a page may get many.
        self._ports = [port for port in self._ports if not port.closed]
        self._ports.extend(ports)

    def _take(self, event: MessageEvent) -> None:
        if type(event.data) is Unreadable:
            _call(self._failing)
            return
        self.own(*event.ports)
        tell(self._listeners, event)

    def _unload(self) -> None:
        hiding, self._hiding = self._hiding, []
        _call(hiding)
        self.gone = True
        self._listeners.clear()
        for port in self._ports:
            port.close("its page is gone")
        self._ports.clear()


Program: TypeAlias = Callable[[Window], Any]
"""Code that a page runs when it loads."""


class Frame:
    """An iframe in a page. Initially, it contains an empty page without listeners.

    Args:
        host: The surrounding page.
        sandbox: Give its pages an opaque origin, as ``sandbox="allow-scripts"`` does.
    """

    def __init__(self, host: Window, *, sandbox: bool = False) -> None:
        self.host: Window = host
        self._sandbox = sandbox
        self._proxy: WindowProxy | None = None
        self._page: tuple[str, Program] | None = None
        self._attach()

    def _attach(self) -> None:
        proxy = self._proxy = WindowProxy(None)
        proxy._show(self._window(self.host.origin, proxy))

    def _window(self, origin: str, proxy: WindowProxy) -> Window:
        return Window(OPAQUE if self._sandbox else origin, self.host.proxy, proxy=proxy, shuffle=self.host.shuffle)

    @property
    def content_window(self) -> WindowProxy | None:
        """The frame's window, or `None` while the frame is removed. Do not cache it, because a frame put back has a new one."""
        return self._proxy

    def load(self, origin: str, program: Program) -> None:
        """Load a page. Its window is created in a later iteration and passed to `program`. Messages posted earlier are lost.

        Raises:
            ValueError: If `origin` is not in the form that browsers use.
        """
        check_origin(origin)
        self._page = (origin, program)
        self.reload()

    def load_srcdoc(self, program: Program) -> None:
        """Load a page from the ``srcdoc`` attribute. It has the host's origin."""
        self.load(self.host.origin, program)

    def reload(self) -> None:
        """Reload the page."""
        proxy, page = self._proxy, self._page
        if proxy is not None and page is not None:
            running_loop().call_soon(lambda: self._loaded(proxy, page))

    def remove(self) -> None:
        """Remove the frame from the page."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy._show(None)

    def put_back(self) -> None:
        """Put the frame back, reloading its page in a new window."""
        if self._proxy is None:
            self._attach()
            self.reload()

    def _loaded(self, proxy: WindowProxy, page: tuple[str, Program]) -> None:
        if proxy is self._proxy and page is self._page:
            origin, program = page
            window = self._window(origin, proxy)
            proxy._show(window)
            _call([lambda: program(window)])


def _call(functions: Iterable[Callable[[], Any]]) -> None:
    """Run a page's callbacks. If one fails, log the error and run the others."""
    for function in tuple(functions):
        try:
            function()
        except Exception:
            logger.exception("a page's code has failed")


def _target(target_origin: str, source: Window) -> str:
    """Return the target origin, or ``*``. Raises `ValueError` for anything else."""
    if target_origin == "*":
        return target_origin
    meant = source.origin if target_origin == "/" else origin_of(target_origin)
    if meant is None:
        raise ValueError(f"target_origin={target_origin!r} must be an origin, such as https://example.org, or '*'")
    return meant


TAG: Final = "polybus"
INTERVAL: Final = 0.05
"""Seconds between two hellos."""
_REMEMBERED: Final = 16
"""Number of answered nonces to remember per frame, so that a late duplicate does not open another port."""
_OFFERED: Final = 4
"""Maximum number of ports offered to a frame that it has not accepted."""


@frozen
class StrangeHello:
    """A handshake message that was not answered."""

    origin: str
    reason: Literal["origin", "source"]
    """``origin`` if the frame's page has another origin, ``source`` if the window is not a served frame."""


@define(eq=False)
class ServedFrame:
    """Async iterator over a frame's ports, for `PortTransport`. Each page loaded into the frame gets a port.

    A new port replaces and closes the previous one.
    """

    _frame: Frame
    name: str
    """Origin of the frame's pages."""
    _on_port: Callable[[InMemoryPort], Any] | None
    _on_reject: Callable[[StrangeHello], Any] | None
    rejected: int = field(default=0, init=False)
    """Number of hellos that were not answered."""
    epoch: int = field(default=0, init=False)
    """Number of ports offered."""
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
        """Stop answering hellos, and close the port."""
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
        """Return the next port.

        Raises:
            StopAsyncIteration: If the object is closed.
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
        """Offer a port. It is not used until a page accepts it, because a hello may arrive after its page is gone."""
        self._nonces.append(nonce)
        self.epoch += 1
        self._withdraw(self.epoch - _OFFERED)
        channel = MessageChannel(shuffle=self._frame.host.shuffle)
        self._offers[nonce] = self.epoch, channel.port1
        answer = _words("port", nonce, epoch=self.epoch)
        window.post_message(answer, _any_if_opaque(self.name), [channel.port2], source=self._frame.host)

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
    """Give ports to a frame's pages: ``connect(PortTransport(serve_frame(frame, origin=...)), protocol="ubre")``.

    Call this before the frame loads. Equivalent to ``serveFrame`` in ``polybus-frames.js``.

    Args:
        frame: The frame.
        origin: Origin that its pages must have, or ``"null"`` for a sandboxed frame.
        on_port: Called with each port.
        on_reject: Called for each hello that is not answered.

    Raises:
        ValueError: If `origin` is empty, a wildcard, or not in the form that browsers use.
    """
    check_origin(origin)
    return ServedFrame(frame, origin, on_port, on_reject)


async def connect_to_host(window: Window, *, origins: Iterable[str], timeout: float = 10.0) -> InMemoryPort:
    """Connect a frame to the surrounding page and return the port. Equivalent to ``connectToHost`` in ``polybus-frames.js``.

    Args:
        window: The frame's own window.
        origins: Allowed origins of the surrounding page.
        timeout: Seconds to wait for a port.

    Raises:
        ConnectFailed: If no port arrives in time, or there is no surrounding page.
        ValueError: If `origins` is empty or has an invalid origin.
    """
    allowed = tuple(origins)
    if not allowed:
        raise ValueError("origins=() must name the allowed origins of the surrounding page")
    for origin in allowed:
        check_origin(origin)
    parent = window.parent
    if parent is None or window.gone:
        raise ConnectFailed(window.origin, "this page is gone" if window.gone else "there is no surrounding page")
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
                    parent.post_message(_words("hello", nonce), _any_if_opaque(origin), source=window)
                with anyio.move_on_after(INTERVAL):
                    await came.wait()
    finally:
        window.remove_listener(heard)
    if not found:
        text = f"timed out after {timeout:g} s: no page of {', '.join(allowed)} answered"
        raise ConnectFailed(parent.origin, text, errno=errno.ETIMEDOUT)
    port = found[0]
    parent.post_message(_words("taken", nonce), _any_if_opaque(str(port.info.origin)), source=window)
    _say_goodbye(window, port)
    return port


def _words(type: str, nonce: str, **more: int) -> dict[str, Any]:
    return {"tag": TAG, "type": type, "v": VERSION, "nonce": nonce, **more}


def _any_if_opaque(origin: str) -> str:
    """Return ``*`` for an opaque origin, which cannot be a target. The nonce then identifies the receiver."""
    return "*" if origin == "null" else origin


def _say_goodbye(window: Window, port: InMemoryPort) -> None:
    """Notify the other end of this port when the page goes away."""

    def goodbye() -> None:
        for each in window.joined:
            each.post(bye(1001, "the page is gone"))

    if not window.joined:
        window.on_pagehide(goodbye)
    # Drop closed ports, since a page may be put back many times.
    window.joined[:] = [*(each for each in window.joined if not each.closed), port]
