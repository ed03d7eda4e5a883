"""A session of Zenoh, and the threads in which it is called: most of its calls block.

Opening, declaring and closing go through one thread, in order: so what is given up while it opens is closed all the same.
Zenoh calls back on threads of its own; a session that is open when the interpreter ends is closed before that.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio

from ..._util.event_loop import running_loop
from ...plugins import Sample
from .address import as_json
from .copies import Copies
from .inbox import Inbox
from .lanes import Lanes

if TYPE_CHECKING:
    import zenoh

# Zenoh's own types leave out the results of its methods, so sessions and subscribers are `Any` here.
T = TypeVar("T")

_NOTHING: Final = "polybus/nothing"
_PATIENCE: Final = 2.0
"""Seconds that the next nodes have to say that they know a filter; then they are taken to."""

logger: logging.Logger = logging.getLogger("polybus.transports")


class ZenohNode:
    """One session of Zenoh.

    Args:
        sender: Who has sent a sample of a key.
        largest: Bytes of a payload and of an attachment that are taken.
        news: Called in the event loop, when samples wait in `inbox`.
        eased: Called in the event loop, when `lanes` takes more again.
        alone: Called in the event loop, when the last other node has gone.
    """

    def __init__(
        self,
        sender: Callable[[str], str],
        largest: int,
        news: Callable[[], None],
        eased: Callable[[], None],
        alone: Callable[[], None],
    ) -> None:
        self._loop = running_loop()
        self._sender, self._largest, self._alone = sender, largest, alone
        self.inbox: Final = Inbox(lambda: self._tell(news))
        self._copies: Final = Copies()
        self.lanes: Final = Lanes(self._put, lambda: self._tell(eased))
        self._control: Final = ThreadPoolExecutor(1, "polybus-zenoh")
        self._session: Any = None
        self._subscribers: dict[str, Any] = {}
        self._transports = 0
        self._priorities: Sequence[Any] = ()
        self._write: Callable[..., None] | None = None

    def _tell(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_from_thread(function)
        except RuntimeError:
            pass  # the loop is over

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in the thread of this node. Cancelled, it is called all the same."""
        done = anyio.Event()
        future: Future[T] = self._control.submit(function, *args)
        future.add_done_callback(lambda _: self._tell(done.set))
        await done.wait()
        return future.result()

    def open(self, settings: Mapping[str, Any], config: str | None, expressions: Sequence[str]) -> None:
        """Open the session, with subscribers for these expressions from the start. Blocks; may raise `zenoh.ZError`."""
        import zenoh

        given = zenoh.Config() if config is None else zenoh.Config.from_file(config)
        for path, value in as_json(settings).items():
            given.insert_json5(path, value)
        session = zenoh.open(given)
        levels = zenoh.Priority
        self._priorities = (
            levels.BACKGROUND, levels.DATA_LOW, levels.DATA, levels.DATA_HIGH, levels.INTERACTIVE_LOW, levels.INTERACTIVE_HIGH,
            levels.REAL_TIME,
        )  # fmt: skip
        # Zenoh says nothing of what it drops; what blocks waits in our lanes, and what they drop is counted.
        block, others = zenoh.CongestionControl.BLOCK, zenoh.Locality.REMOTE
        self._write = partial(session.put, congestion_control=block, allowed_destination=others)
        atexit.register(self._close)
        self._session = session
        self._declare(expressions)  # at once: who finds this node may write to it
        session.info.declare_transport_events_listener(
            zenoh.handlers.Callback(self._joined_or_left, indirect=False), history=True
        )

    def _joined_or_left(self, event: zenoh.TransportEvent) -> None:
        import zenoh

        self._transports += 1 if event.kind == zenoh.SampleKind.PUT else -1
        if self._transports <= 0 and event.kind == zenoh.SampleKind.DELETE:
            self._tell(self._alone)

    def declare(self, expressions: Sequence[str], done: Callable[[Exception | None], None]) -> None:
        """Have subscribers for these expressions, and no others.

        Args:
            expressions: Of the keys.
            done: Called in the event loop when the next nodes know, with what has failed.
        """

        def declare() -> None:
            failure = None
            try:
                self._declare(expressions)
                self._settle()
            except Exception as error:
                failure = error
            self._tell(lambda: done(failure))

        self._submit(declare)

    def _declare(self, expressions: Sequence[str]) -> None:
        import zenoh

        session = self._session
        if session is None:
            return
        wanted = dict.fromkeys(expressions)
        for expression in wanted:  # first, so that what an old one and a new one let through is never missed
            if expression not in self._subscribers:
                # In Zenoh's thread: in one of Python's, which it would make, samples would wait without a bound.
                handler = zenoh.handlers.Callback(self._taker(expression), indirect=False)
                self._subscribers[expression] = session.declare_subscriber(expression, handler)
        for expression in self._subscribers.keys() - wanted.keys():
            self._subscribers.pop(expression).undeclare()

    def _settle(self) -> None:
        """Ask the next nodes for something that nobody has: they answer behind what they were told before."""
        if self._session is not None:
            for _ in self._session.liveliness().get(_NOTHING, timeout=_PATIENCE):
                pass

    def _taker(self, expression: str) -> Callable[[zenoh.Sample], None]:
        """The function that Zenoh calls with each sample of a filter."""
        import zenoh

        add, is_first, sender = self.inbox.add, self._copies.is_first, self._sender
        largest, deletion, count = self._largest, zenoh.SampleKind.DELETE, len(self._priorities)

        def take(sample: zenoh.Sample) -> None:
            key, payload, attachment = str(sample.key_expr), sample.payload, sample.attachment
            level = count - int(cast("Any", sample.priority))  # Zenoh's numbers begin with the most urgent, at 1
            size = len(payload) + (0 if attachment is None else len(attachment))
            if size > largest or sample.kind == deletion:  # messages are put, whatever a deletion has with it
                taken = Sample(key, None, b"", level)  # is refused, and was not copied
            else:
                taken = Sample(key, None if attachment is None else bytes(attachment), bytes(payload), level)
            if is_first(expression, taken):
                add(sender(key), taken)

        return take

    def _put(self, sample: Sample) -> None:
        import zenoh

        write = self._write
        if write is None:
            return
        try:
            write(sample.key, sample.payload, priority=self._priorities[sample.level], attachment=sample.attachment)
        except zenoh.ZError as error:  # it is being closed
            logger.debug("a sample could not be written: %s", error)

    def _close(self) -> None:
        session, self._session, self._write = self._session, None, None
        if session is not None:
            atexit.unregister(self._close)
            try:
                session.close()
            except Exception as error:  # after ten seconds, where a write blocks: what is left of it ends by itself
                logger.debug("a session of Zenoh was not closed: %s", error)

    def close(self, closed: Callable[[], None]) -> None:
        """Write what waits, close the session, then call a function in the event loop."""
        self.lanes.flush(lambda: self._end(closed))

    def cut(self) -> int:
        """Close the session soon, without what waits. Gives how many samples were dropped."""
        count = self.lanes.drop()
        self._end(lambda: None)
        return count

    def _end(self, closed: Callable[[], None]) -> None:
        def end() -> None:
            self._close()
            self._tell(closed)

        self._submit(end)
        self._control.shutdown(wait=False)

    def _submit(self, function: Callable[[], None]) -> None:
        try:
            self._control.submit(function)
        except RuntimeError:
            pass  # it has ended already
