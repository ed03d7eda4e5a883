"""A Zenoh session, the threads that call it, and its way into the event loop.

Most calls block. One thread opens, declares and closes, in order, so an abandoned open is still closed. Zenoh calls back on its
own threads; an open session is closed before the interpreter ends. For each sample, one thread calls the matching subscribers
in turn, chosen before the first call. Copies are therefore recognised by the thread's last call, even while filters change.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio
from attrs import define, field

from ...plugins import Sample
from ...plugins.features import LEVELS
from ...plugins.tools import running_loop
from .address import as_json
from .lanes import Lanes

if TYPE_CHECKING:
    import zenoh

logger: logging.Logger = logging.getLogger("polybus.transports")

MOST_THREADS: Final = 64
"""Zenoh threads with a remembered last sample; it has a few."""


@define(eq=False)
class _Latest:
    """A thread's last sample: key, attachment, and the filters that delivered it."""

    key: str
    attachment: bytes | None
    came_by: set[str] = field(factory=set)


class Copies:
    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[int, _Latest] = {}

    @property
    def threads(self) -> int:
        return len(self._latest)

    def is_first(self, expression: str, sample: Sample) -> bool:
        """True for the first copy. Call it in Zenoh's thread.

        Args:
            expression: The filter of the call. Each filter gets a sample once, so a repeated sample is not lost.
            sample: The sample, recognised by key and attachment.
        """
        thread = get_ident()
        latest = self._latest.get(thread)
        if latest is None:
            if len(self._latest) >= MOST_THREADS:
                self._latest.clear()  # includes ended threads; at worst a copy is delivered twice
        elif expression not in latest.came_by and sample.key == latest.key and sample.attachment == latest.attachment:
            latest.came_by.add(expression)
            return False
        self._latest[thread] = _Latest(sample.key, sample.attachment, {expression})
        return True


MOST_SAMPLES: Final = 16_384
MOST_BYTES: Final = 16 * 1024 * 1024
"""Samples and bytes of one priority that may wait; one sender may use half, to leave space for others."""
BATCH: Final = 64
BATCH_BYTES: Final = 64 * 1024
"""Samples and bytes per turn of the event loop."""


@define(eq=False)
class _Queue:
    samples: deque[tuple[str, Sample]] = field(factory=deque)
    bytes: int = 0
    sent: dict[str, tuple[int, int]] = field(factory=dict)

    def add(self, sender: str, sample: Sample) -> bool:
        size = sample.size
        count, held = self.sent.get(sender, (0, 0))
        if self.samples and (
            len(self.samples) >= MOST_SAMPLES
            or self.bytes + size > MOST_BYTES
            or 2 * count >= MOST_SAMPLES
            or (count and 2 * (held + size) > MOST_BYTES)
        ):
            return False
        self.samples.append((sender, sample))
        self.bytes += size
        self.sent[sender] = count + 1, held + size
        return True

    def take(self) -> Sample:
        sender, sample = self.samples.popleft()
        size = sample.size
        self.bytes -= size
        count, held = self.sent[sender]
        if count > 1:
            self.sent[sender] = count - 1, held - size
        else:
            del self.sent[sender]
        return sample


class Inbox:
    """Samples on their way to the event loop.

    Args:
        wake: Called from any thread at the first of several samples: the loop must call `take`.
    """

    __slots__ = ("_lock", "_lost", "_queues", "_wake", "_woken")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self._lock: Final = Lock()
        self._queues: Final = tuple(_Queue() for _ in range(LEVELS))
        self._lost = 0
        self._woken = False

    def add(self, sender: str, sample: Sample) -> None:
        """Queue a sample, from any thread.

        Args:
            sender: Name of its sender.
            sample: The sample.
        """
        with self._lock:
            if not self._queues[sample.level].add(sender, sample):
                self._lost += 1
            if self._woken:
                return
            self._woken = True
        self._wake()

    def take(self) -> tuple[list[Sample], bool]:
        """Take the next batch, the most urgent first.

        Returns:
            The batch, and True if there is more: then call `take` again, as `wake` is not called.
        """
        batch: list[Sample] = []
        size = 0
        with self._lock:
            for queue in reversed(self._queues):
                while queue.samples and len(batch) < BATCH and size < BATCH_BYTES:
                    batch.append(queue.take())
                    size += batch[-1].size
            self._woken = more = any(queue.samples for queue in self._queues)
        return batch, more

    def lost(self) -> int:
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    @property
    def waiting(self) -> int:
        return sum(queue.bytes for queue in self._queues)

    def clear(self) -> None:
        with self._lock:
            for queue in self._queues:
                queue.samples.clear()
                queue.sent.clear()
                queue.bytes = 0


# Zenoh's stubs lack return types, so sessions and subscribers are `Any` here.
T = TypeVar("T")

_NOTHING: Final = "polybus/nothing"
_PATIENCE: Final = 2.0
"""Seconds for the next nodes to confirm a filter; then they are assumed to know it."""


class ZenohNode:
    """One Zenoh session.

    Args:
        sender: Returns the sender of a key.
        largest: Maximum bytes of a payload with attachment.
        news: Called in the event loop when samples wait in `inbox`.
        eased: Called in the event loop when `lanes` accepts more.
        alone: Called in the event loop when the last other node has gone.
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
            pass  # the loop has ended

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in this node's thread, even if cancelled."""
        done = anyio.Event()
        future: Future[T] = self._control.submit(function, *args)
        future.add_done_callback(lambda _: self._tell(done.set))
        await done.wait()
        return future.result()

    def open(self, settings: Mapping[str, Any], config: str | None, expressions: Sequence[str]) -> None:
        """Open the session with subscribers for these expressions. Blocks; may raise `zenoh.ZError`."""
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
        # Zenoh drops samples silently; BLOCK makes them wait in the lanes, which count what they drop.
        block, others = zenoh.CongestionControl.BLOCK, zenoh.Locality.REMOTE
        self._write = partial(session.put, congestion_control=block, allowed_destination=others)
        atexit.register(self._close)
        self._session = session
        self._declare(expressions)  # at once: a node that finds this one may send to it
        session.info.declare_transport_events_listener(
            zenoh.handlers.Callback(self._joined_or_left, indirect=False), history=True
        )

    def _joined_or_left(self, event: zenoh.TransportEvent) -> None:
        import zenoh

        self._transports += 1 if event.kind == zenoh.SampleKind.PUT else -1
        if self._transports <= 0 and event.kind == zenoh.SampleKind.DELETE:
            self._tell(self._alone)

    def declare(self, expressions: Sequence[str], done: Callable[[Exception | None], None]) -> None:
        """Subscribe to exactly these expressions.

        Args:
            expressions: Key expressions.
            done: Called in the event loop with the failure, or None once the next nodes know them.
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
        for expression in wanted:  # first, so that no sample between an old and a new filter is missed
            if expression not in self._subscribers:
                # In Zenoh's thread: a Python thread of Zenoh's would queue samples without bound.
                handler = zenoh.handlers.Callback(self._taker(expression), indirect=False)
                self._subscribers[expression] = session.declare_subscriber(expression, handler)
        for expression in self._subscribers.keys() - wanted.keys():
            self._subscribers.pop(expression).undeclare()

    def _settle(self) -> None:
        """Query a key that does not exist: the next nodes answer after processing earlier declarations."""
        if self._session is not None:
            for _ in self._session.liveliness().get(_NOTHING, timeout=_PATIENCE):
                pass

    def _taker(self, expression: str) -> Callable[[zenoh.Sample], None]:
        import zenoh

        add, is_first, sender = self.inbox.add, self._copies.is_first, self._sender
        largest, deletion, count = self._largest, zenoh.SampleKind.DELETE, len(self._priorities)

        def take(sample: zenoh.Sample) -> None:
            key, payload, attachment = str(sample.key_expr), sample.payload, sample.attachment
            level = count - int(cast("Any", sample.priority))  # Zenoh counts priorities from the most urgent, 1
            size = len(payload) + (0 if attachment is None else len(attachment))
            if size > largest or sample.kind == deletion:  # messages are put; a deletion is not one
                taken = Sample(key, None, b"", level)  # will be refused; not copied
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
        except zenoh.ZError as error:  # closing
            logger.debug("a sample could not be written: %s", error)

    def _close(self) -> None:
        session, self._session, self._write = self._session, None, None
        if session is not None:
            atexit.unregister(self._close)
            try:
                session.close()
            except Exception as error:  # after ten seconds if a write blocks; the rest of the session ends later
                logger.debug("a session of Zenoh was not closed: %s", error)

    def close(self, closed: Callable[[], None]) -> None:
        self.lanes.flush(lambda: self._end(closed))

    def cut(self) -> int:
        """Close the session soon without the waiting samples, and return the number dropped."""
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
            pass  # ended already
