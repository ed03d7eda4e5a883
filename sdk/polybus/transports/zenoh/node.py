"""A session of Zenoh, the threads in which it is called, and what comes from it to the event loop.

Most of its calls block. Opening, declaring and closing go through one thread, in order: so what is given up while it opens is
closed all the same. Zenoh calls back on threads of its own; a session that is open when the interpreter ends is closed before
that. It calls each subscriber that lets a sample through, one behind another, in one thread, and which ones that are is settled
before the first is called. So copies are told by what was called last in their thread, whatever filters come and go meanwhile.
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
"""Threads of Zenoh whose last sample is known; it has a few."""


@define(eq=False)
class _Latest:
    """The last sample of a thread: its key, its attachment, and the filters that it came by."""

    key: str
    attachment: bytes | None
    came_by: set[str] = field(factory=set)


class Copies:
    """Tells the first copy of each sample from the others."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[int, _Latest] = {}

    @property
    def threads(self) -> int:
        """Threads whose last sample is known."""
        return len(self._latest)

    def is_first(self, expression: str, sample: Sample) -> bool:
        """True of the first copy. To be called in the thread in which Zenoh calls.

        Args:
            expression: The filter that it comes by. By each of them a sample comes once: so one that is sent again is not lost.
            sample: The sample, which is known by its key and its attachment.
        """
        thread = get_ident()
        latest = self._latest.get(thread)
        if latest is None:
            if len(self._latest) >= MOST_THREADS:
                self._latest.clear()  # of threads that have ended; at worst a copy comes twice
        elif expression not in latest.came_by and sample.key == latest.key and sample.attachment == latest.attachment:
            latest.came_by.add(expression)
            return False
        self._latest[thread] = _Latest(sample.key, sample.attachment, {expression})
        return True


MOST_SAMPLES: Final = 16_384
MOST_BYTES: Final = 16 * 1024 * 1024
"""Samples and bytes of one priority that may wait; one sender has half of that, so that a loud one leaves room for others."""
BATCH: Final = 64
BATCH_BYTES: Final = 64 * 1024
"""Samples and bytes that are handed on in one turn of the event loop."""


@define(eq=False)
class _Queue:
    """One priority."""

    samples: deque[tuple[str, Sample]] = field(factory=deque)
    """Each with its sender."""
    bytes: int = 0
    sent: dict[str, tuple[int, int]] = field(factory=dict)
    """Samples and bytes that wait, by sender."""

    def add(self, sender: str, sample: Sample) -> bool:
        """Let a sample wait. False if there is no room."""
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
        """Take the oldest."""
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
        wake: Called from any thread, when the first of several has come: `take` is to be called in the loop.
    """

    __slots__ = ("_lock", "_lost", "_queues", "_wake", "_woken")

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake: Final = wake
        self._lock: Final = Lock()
        self._queues: Final = tuple(_Queue() for _ in range(LEVELS))
        self._lost = 0
        self._woken = False

    def add(self, sender: str, sample: Sample) -> None:
        """Take in a sample, from any thread.

        Args:
            sender: The name of whoever has sent it.
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
            The batch, and whether there is more: then `take` is to be called again, and nobody is woken for it.
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
        """Count of the samples that were dropped since the last call."""
        with self._lock:
            lost, self._lost = self._lost, 0
        return lost

    @property
    def waiting(self) -> int:
        """Bytes that wait."""
        return sum(queue.bytes for queue in self._queues)

    def clear(self) -> None:
        """Drop all."""
        with self._lock:
            for queue in self._queues:
                queue.samples.clear()
                queue.sent.clear()
                queue.bytes = 0


# Zenoh's own types leave out the results of its methods, so sessions and subscribers are `Any` here.
T = TypeVar("T")

_NOTHING: Final = "polybus/nothing"
_PATIENCE: Final = 2.0
"""Seconds that the next nodes have to say that they know a filter; then they are taken to."""


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
