"""Windows and frames in one process, with origins: so that handshakes can be tested without a browser."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, TypeAlias

from ..._util.event_loop import running_loop
from ...transports.postmessage._channel import InMemoryPort, MessageEvent, later, tell, transferring
from ...transports.postmessage._clone import ArrayBuffer, Unreadable
from ...transports.postmessage._origins import OPAQUE, check_origin, origin_of

logger: logging.Logger = logging.getLogger("polybus.transports")


class WindowProxy:
    """A reference to a window, for others: it stays the same when another page is loaded into it."""

    def __init__(self, window: Window | None) -> None:
        self.dropped: int = 0
        """Messages that were meant for a page of another origin."""
        self._window = window

    @property
    def origin(self) -> str:
        """Of the page that is shown now."""
        return OPAQUE if self._window is None else self._window.origin

    def __repr__(self) -> str:
        return f"<WindowProxy {self.origin}>"

    def post_message(
        self, data: Any, target_origin: str, transfer: Iterable[InMemoryPort | ArrayBuffer] = (), *, source: Window
    ) -> None:
        """Post to the page that is shown now. Where that has another origin, or has gone by then, the message is lost.

        Args:
            data: What can be cloned.
            target_origin: The origin that the page must have, or an address of that origin; ``"/"`` for that of `source`;
                ``"*"`` for any.
            transfer: What the sender gives up, lost or not.
            source: Who posts.

        Raises:
            ValueError: `target_origin` is neither an origin nor ``*``.
            DataCloneError: It cannot be cloned or transferred.
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
    """From one window to another: what is posted arrives in order, and each in a turn of its own."""

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
    """One page, as its own code sees it. When another one is loaded in its place it is gone, with its listeners and ports.

    Args:
        origin: As ``https://example.org``; ``"null"`` for an opaque one.
        parent: The page around it.
        proxy: What others hold of it; a new one by default.
        shuffle: For tests: what is posted here, in the frames of this page and on the ports that they get arrives after a
            random number of turns. Between two windows, and on one port, the order is kept; no browser promises another.

    Raises:
        ValueError: `origin` is none, or not as a browser writes it.
    """

    def __init__(
        self,
        origin: str,
        parent: WindowProxy | None = None,
        *,
        proxy: WindowProxy | None = None,
        shuffle: Random | None = None,
    ) -> None:
        check_origin(origin)
        self.shuffle: Random | None = shuffle
        self.origin: str = origin
        self.parent: WindowProxy | None = parent
        self.proxy: WindowProxy = proxy or WindowProxy(self)
        self.gone: bool = False
        """Another page was loaded, or the frame removed: nothing that it posts arrives."""
        self._listeners: dict[Callable[[MessageEvent], Any], None] = {}
        self._failing: list[Callable[[], Any]] = []
        self._hiding: list[Callable[[], Any]] = []
        self._lanes: defaultdict[WindowProxy, _Lane] = defaultdict(lambda: _Lane(shuffle))
        self._ports: list[InMemoryPort] = []
        self.served: list[Any] = []
        """Frames in this page that are given ports."""
        self.joined: list[InMemoryPort] = []
        """Ports to the page around it, which are told when it goes."""

    def __repr__(self) -> str:
        return f"<Window {self.origin}>"

    def add_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Tell of every message from now on. What came before is lost. One that is there: nothing happens."""
        self._listeners[callback] = None

    def remove_listener(self, callback: Callable[[MessageEvent], Any]) -> None:
        """Tell it no more. One that is not there: nothing happens."""
        self._listeners.pop(callback, None)

    def on_message_error(self, callback: Callable[[], Any]) -> None:
        """Call for each message that came and cannot be read; see `Unreadable`."""
        self._failing.append(callback)

    def on_pagehide(self, callback: Callable[[], Any]) -> None:
        """Call when the page goes: reloaded, replaced or removed. What it posts to its ports then still arrives."""
        self._hiding.append(callback)

    def own(self, *ports: InMemoryPort) -> None:
        """These ports belong to this page, and go with it, as those do that it was sent."""
        # What is closed is of no interest any more, and a page may be given many.
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
"""The code that a page runs when it is loaded."""


class Frame:
    """An iframe in a page: at first it shows an empty page, which listens to nothing.

    Args:
        host: The page around it.
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
        """Its contents; None when it is removed. Removed and put back it is another one, so ask anew each time."""
        return self._proxy

    def load(self, origin: str, program: Program) -> None:
        """Show a page: it is there, and `program` is called with its window, in a later turn. Posts before that are lost.

        Raises:
            ValueError: `origin` is none, or not as a browser writes it.
        """
        check_origin(origin)
        self._page = (origin, program)
        self.reload()

    def load_srcdoc(self, program: Program) -> None:
        """Show a page written in the attribute ``srcdoc``: it has the origin of the host."""
        self.load(self.host.origin, program)

    def reload(self) -> None:
        """Show the same page anew."""
        proxy, page = self._proxy, self._page
        if proxy is not None and page is not None:
            running_loop().call_soon(lambda: self._loaded(proxy, page))

    def remove(self) -> None:
        """Take it out of the page."""
        proxy, self._proxy = self._proxy, None
        if proxy is not None:
            proxy._show(None)

    def put_back(self) -> None:
        """Into the page again; its page is loaded anew, in a new window."""
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
    """Code of a page: what fails is logged, and keeps nothing from the others."""
    for function in tuple(functions):
        try:
            function()
        except Exception:
            logger.exception("a page's code has failed")


def _target(target_origin: str, source: Window) -> str:
    """The origin that is meant, or ``*``; ValueError where it is neither an origin, nor an address of one, nor ``*``."""
    if target_origin == "*":
        return target_origin
    meant = source.origin if target_origin == "/" else origin_of(target_origin)
    if meant is None:
        raise ValueError(f"target_origin={target_origin!r}: an origin, such as https://example.org, or '*'")
    return meant
