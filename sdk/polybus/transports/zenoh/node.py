"""A Zenoh session and its threads.

Most Zenoh calls block. A single thread opens, declares and closes in order, so that an abandoned session is still closed.
Callbacks arrive on Zenoh's own threads, and an open session is closed before the interpreter exits. Each priority has its own
queue and thread for outgoing samples. A write may block for seconds, and a stalled reader must block only messages of the same
priority.

For each sample, one of Zenoh's threads calls the matching subscribers one after the other. Zenoh chooses them before the first
call. Copies can therefore be recognised by comparing them with the thread's previous call, even while filters change.
"""

from __future__ import annotations

import atexit
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain
from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio
from attrs import define, field

from ...plugins import Sample
from ...plugins.features import LEVELS
from ...plugins.tools import running_loop

if TYPE_CHECKING:
    import zenoh

logger: logging.Logger = logging.getLogger("polybus.transports")

MOST_THREADS: Final = 64
"""Maximum number of Zenoh threads to remember the last sample of. Zenoh uses only a few threads."""


@define(eq=False)
class _Latest:
    """The last sample of a thread: its key, attachment, and the filters that delivered it."""

    key: str
    attachment: bytes | None
    came_by: set[str] = field(factory=set)


@define(eq=False, repr=False)
class Copies:
    _latest: dict[int, _Latest] = field(factory=dict, init=False)

    def is_first(self, expression: str, sample: Sample) -> bool:
        """Return True for the first copy of a sample. Runs in Zenoh's thread.

        Copies have the same key and attachment, but arrive by another filter. Each filter delivers a sample once, so a repeated
        sample is not mistaken for a copy.
        """
        thread = get_ident()
        latest = self._latest.get(thread)
        if latest is None:
            if len(self._latest) >= MOST_THREADS:
                self._latest.clear()  # may include ended threads; at worst a copy is delivered twice
        elif expression not in latest.came_by and sample.key == latest.key and sample.attachment == latest.attachment:
            latest.came_by.add(expression)
            return False
        self._latest[thread] = _Latest(sample.key, sample.attachment, {expression})
        return True


MOST_SAMPLES: Final = 16_384
MOST_BYTES: Final = 16 * 1024 * 1024
"""Maximum number and bytes of waiting samples per priority. A single sender may use half, to leave space for other senders."""
BATCH: Final = 64
BATCH_BYTES: Final = 64 * 1024
"""Maximum samples and bytes per event-loop iteration."""


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


@define(eq=False, repr=False)
class Inbox:
    """Queue of samples on their way to the event loop.

    `wake` is called from any thread for the first sample. The event loop must then call `take`.
    """

    _wake: Callable[[], None]
    _lock: Lock = field(factory=Lock, init=False)
    _queues: tuple[_Queue, ...] = field(factory=lambda: tuple(_Queue() for _ in range(LEVELS)), init=False)
    _lost: int = field(default=0, init=False)
    _woken: bool = field(default=False, init=False)

    def add(self, sender: str, sample: Sample) -> None:
        """Queue a sample. Can be called from any thread."""
        with self._lock:
            if not self._queues[sample.level].add(sender, sample):
                self._lost += 1
            if self._woken:
                return
            self._woken = True
        self._wake()

    def take(self) -> tuple[list[Sample], bool]:
        """Return the next batch, most urgent samples first, and True if the caller must call `take` again for more."""
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


HIGH_BYTES: Final = 256 * 1024
HIGH_SAMPLES: Final = 256
"""Outgoing samples or bytes of one priority above which the bus is asked to pause. It resumes when less than half remain."""
LANE_SAMPLES: Final = 4096
"""Maximum number of outgoing samples of one priority. New ones are dropped if they exceed this number or `MOST_BYTES`."""


@define(eq=False, repr=False)
class Lane:
    """Queue of the outgoing samples of one priority.

    While a full lane makes progress, the bus is asked to pause. A stalled lane drops and counts the excess samples so that
    other lanes can continue. `put` may block, but never raises. The lane's thread calls `eased` when it is no longer `full`.
    """

    _level: int
    _put: Callable[[Sample], None]
    _eased: Callable[[], None]
    _executor: ThreadPoolExecutor | None = field(default=None, init=False)
    _lock: Lock = field(factory=Lock, init=False)
    _samples: deque[Sample] = field(factory=deque, init=False)
    _bytes: int = field(default=0, init=False)
    _running: bool = field(default=False, init=False)
    _full: bool = field(default=False, init=False)
    _written: int = field(default=0, init=False)
    _written_before: int = field(default=-1, init=False)

    @property
    def waiting(self) -> int:
        return self._bytes

    @property
    def full(self) -> bool:
        """True if the lane is full but makes progress, so that the bus should pause."""
        return self._full and not self.stalled

    @property
    def stalled(self) -> bool:
        """True if samples were waiting but nothing has been written since the last call of `look`."""
        return self._running and self._written == self._written_before

    def look(self) -> None:
        """Record the current progress, for `stalled`."""
        self._written_before = self._written if self._running else -1

    def add(self, sample: Sample) -> bool:
        size = sample.size
        with self._lock:
            if len(self._samples) >= LANE_SAMPLES or (self._samples and self._bytes + size > MOST_BYTES):
                return False
            self._samples.append(sample)
            self._bytes += size
            self._full = self._full or self._bytes > HIGH_BYTES or len(self._samples) > HIGH_SAMPLES
            if self._running:
                return True
            self._running = True
        if self._executor is None:  # its thread ends with the interpreter even if the connection is never closed
            self._executor = ThreadPoolExecutor(1, f"polybus-zenoh-{self._level}")
        self._executor.submit(self._write)
        return True

    def _write(self) -> None:
        while (sample := self._next()) is not None:
            self._put(sample)
            self._written += 1
            if self._full and 2 * self._bytes <= HIGH_BYTES and 2 * len(self._samples) <= HIGH_SAMPLES:
                self._full = False
                self._eased()

    def _next(self) -> Sample | None:
        with self._lock:
            if not self._samples:
                self._running = False
                return None
            sample = self._samples.popleft()
            self._bytes -= sample.size
            return sample

    def flush(self, done: Callable[[], None]) -> None:
        if self._executor is None:
            done()
        else:
            self._executor.submit(done)

    def drop(self) -> int:
        """Drop the waiting samples, stop the thread after its current write, and return the number of dropped samples."""
        with self._lock:
            count = len(self._samples)
            self._samples.clear()
            self._bytes = 0
        if self._executor is not None:
            self._executor.shutdown(wait=False)
        return count


class Lanes:
    __slots__ = ("_lanes",)

    def __init__(self, put: Callable[[Sample], None], eased: Callable[[], None]) -> None:
        self._lanes: Final = tuple(Lane(level, put, eased) for level in range(LEVELS))

    def add(self, sample: Sample) -> bool:
        return self._lanes[sample.level].add(sample)

    @property
    def waiting(self) -> int:
        return sum(lane.waiting for lane in self._lanes)

    @property
    def full(self) -> bool:
        return any(lane.full for lane in self._lanes)

    def look(self) -> None:
        for lane in self._lanes:
            lane.look()

    def flush(self, done: Callable[[], None]) -> None:
        left, lock = [len(self._lanes)], Lock()

        def one() -> None:
            with lock:
                left[0] -= 1
                last = not left[0]
            if last:
                done()

        for lane in self._lanes:
            lane.flush(one)

    def drop(self) -> int:
        return sum(lane.drop() for lane in self._lanes)


@define(eq=False, repr=False)
class Early:
    """Samples of a node that has just joined others.

    Zenoh drops samples without a subscriber, and nodes accept others before they have declared their filters. Therefore,
    samples whose key has no subscriber wait for one, and samples with a new key wait until `seek` has called `told`. All others
    are written in order. `write` must not raise.
    """

    _seek: Callable[[str], None]
    _write: Callable[[Sample], None]
    _line: deque[Sample] = field(factory=deque, init=False)
    """Samples in order. It is not known whether the first one has a subscriber."""
    _sought: set[str] = field(factory=set, init=False)
    _waiting: dict[str, list[Sample]] = field(factory=dict, init=False)
    _found: set[str] = field(factory=set, init=False)
    count: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)

    @property
    def full(self) -> bool:
        return self.count >= LANE_SAMPLES or self.bytes > MOST_BYTES or len(self._sought) >= LANE_SAMPLES

    def add(self, sample: Sample) -> None:
        self.count += 1
        self.bytes += sample.size
        self._line.append(sample)
        if sample.key not in self._sought:
            self._sought.add(sample.key)
            self._seek(sample.key)
        self._advance()

    def waits(self, key: str) -> bool:
        """Return True if a key is known to have had no subscriber."""
        return key in self._waiting

    def told(self, key: str, has_subscriber: bool) -> None:
        if has_subscriber:
            self._found.add(key)
            self._pass_on(self._waiting.pop(key, ()))
        elif key not in self._found:
            self._waiting.setdefault(key, [])
        self._advance()

    def _advance(self) -> None:
        while self._line:
            sample = self._line[0]
            if sample.key in self._found:
                self._pass_on((self._line.popleft(),))
            elif (waiting := self._waiting.get(sample.key)) is not None:
                waiting.append(self._line.popleft())
            else:
                return

    def _pass_on(self, samples: Iterable[Sample]) -> None:
        for sample in samples:
            self.count -= 1
            self.bytes -= sample.size
            self._write(sample)

    def end(self) -> None:
        """Write all samples."""
        self._pass_on([*chain.from_iterable(self._waiting.values()), *self._line])


# Zenoh's stubs lack return types, so sessions and subscribers are `Any` here.
T = TypeVar("T")

_NOTHING: Final = "polybus/nothing"
_PATIENCE: Final = 2.0
"""Seconds to wait for neighbouring nodes to confirm a filter. After that they are assumed to know the filter."""


class ZenohNode:
    """A Zenoh session.

    `sender` returns the sender in a key. Payloads with attachments of more than `largest` bytes are not read. In the event
    loop, `news` is called when samples are waiting in `inbox`, `eased` when `lanes` accepts samples again, and `alone` when the
    last other node has disconnected.
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
        self._publishers: list[Any] | None = []
        self._transports = 0
        self._priorities: Sequence[Any] = ()
        self._write: Callable[..., None] | None = None

    def _tell(self, function: Callable[[], None]) -> None:
        try:
            self._loop.call_from_thread(function)
        except RuntimeError:
            pass  # the loop has ended

    async def run(self, function: Callable[..., T], *args: Any) -> T:
        """Call a function in this node's thread. The function runs to completion even if the caller is cancelled."""
        done = anyio.Event()
        future: Future[T] = self._control.submit(function, *args)
        future.add_done_callback(lambda _: self._tell(done.set))
        await done.wait()
        return future.result()

    def open(self, settings: Mapping[str, Any], config: str | None, expressions: Sequence[str]) -> None:
        """Open the session with subscribers for these key expressions. Blocks, and may raise `zenoh.ZError`."""
        import zenoh

        given = zenoh.Config() if config is None else zenoh.Config.from_file(config)
        for path, value in settings.items():
            given.insert_json5(path, json.dumps(value))
        session = zenoh.open(given)
        levels = zenoh.Priority
        self._priorities = (
            levels.BACKGROUND,
            levels.DATA_LOW,
            levels.DATA,
            levels.DATA_HIGH,
            levels.INTERACTIVE_LOW,
            levels.INTERACTIVE_HIGH,
            levels.REAL_TIME,
        )
        # Zenoh drops samples silently. With BLOCK they wait in the lanes, which count dropped ones.
        block, others = zenoh.CongestionControl.BLOCK, zenoh.Locality.REMOTE
        self._write = partial(session.put, congestion_control=block, allowed_destination=others)
        atexit.register(self._close)
        self._session = session
        self._declare(expressions)  # immediately, because a node that finds this one may send to it
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

        The event loop calls `done` with an exception, or with `None` once the neighbouring nodes know the expressions.
        """

        def declare() -> None:
            try:
                self._declare(expressions)
                self._settle(lambda: self._tell(partial(done, None)))
            except Exception as error:
                self._tell(partial(done, error))

        self._submit(declare)

    def _declare(self, expressions: Sequence[str]) -> None:
        import zenoh

        session = self._session
        if session is None:
            return
        wanted = dict.fromkeys(expressions)
        for expression in wanted:  # new ones first, so that no sample is missed in between
            if expression not in self._subscribers:
                # Called in Zenoh's thread, because an indirect handler would queue samples without bound.
                handler = zenoh.handlers.Callback(self._taker(expression), indirect=False)
                self._subscribers[expression] = session.declare_subscriber(expression, handler)
        for expression in self._subscribers.keys() - wanted.keys():
            self._subscribers.pop(expression).undeclare()

    def _settle(self, then: Callable[[], None]) -> None:
        """Query a key that does not exist, and call `then` in any thread once the query has ended.

        Neighbours answer only after they have processed earlier declarations.
        """
        import zenoh

        if self._session is None:
            then()
        else:
            handler: Any = zenoh.handlers.Callback(lambda _: None, then, indirect=False)
            self._session.liveliness().get(_NOTHING, handler, timeout=_PATIENCE)

    def seek(self, key: str, told: Callable[[str, bool], None]) -> None:
        """Find out whether another node subscribes to a key.

        The event loop calls `told` with the key and the answer, and again whenever a node subscribes, until `stop_seeking`.
        """

        def tell(has_subscriber: bool) -> None:
            self._tell(partial(told, key, has_subscriber))

        def listen(status: Any) -> None:
            if status.matching:
                tell(True)

        def look(publisher: Any) -> None:
            if self._session is not None and self._publishers is not None:
                tell(publisher.matching_status.matching)

        def seek() -> None:
            import zenoh

            if self._session is None or self._publishers is None:
                return
            try:
                publisher = self._session.declare_publisher(key, allowed_destination=zenoh.Locality.REMOTE)
                self._publishers.append(publisher)
                publisher.declare_matching_listener(zenoh.handlers.Callback(listen, indirect=False))
                self._settle(lambda: self._submit(partial(look, publisher)))
            except zenoh.ZError:  # the key is invalid
                tell(True)

        self._submit(seek)

    def stop_seeking(self) -> None:
        def stop() -> None:
            publishers, self._publishers = self._publishers, None
            for publisher in publishers or ():
                publisher.undeclare()

        self._submit(stop)

    def _taker(self, expression: str) -> Callable[[zenoh.Sample], None]:
        import zenoh

        add, is_first, sender = self.inbox.add, self._copies.is_first, self._sender
        largest, deletion, count = self._largest, zenoh.SampleKind.DELETE, len(self._priorities)

        def take(sample: zenoh.Sample) -> None:
            key, payload, attachment = str(sample.key_expr), sample.payload, sample.attachment
            level = count - int(cast("Any", sample.priority))  # in Zenoh, 1 is the most urgent
            size = len(payload) + (0 if attachment is None else len(attachment))
            if size > largest or sample.kind == deletion:  # a deletion is not a message
                taken = Sample(key, None, b"", level)  # not copied, since it will be refused
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
            except Exception as error:  # after ten seconds if a write blocks; the session ends later
                logger.debug("a session of Zenoh was not closed: %s", error)

    def close(self, closed: Callable[[], None]) -> None:
        self.lanes.flush(lambda: self._end(closed))

    def cut(self) -> int:
        """Close the session soon without sending the waiting samples. Returns the number of dropped samples."""
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
