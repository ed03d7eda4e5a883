"""JetStream for tests: streams, pull consumers, and the parts of the API that a bus uses.

All data is in memory and is lost when the engine stops. Streams support ``limits`` and ``workqueue`` retention. Pull consumers
require acknowledgement of either every message or none. Sources, mirrors and push consumers are not supported.
"""

from __future__ import annotations

import base64
import datetime
import math
import re
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec
from attrs import define, field, frozen

from ..plugins.tools import SubjectIndex, tokens_overlap
from ..protocols.nats.cluster.subjects import covers
from ..protocols.nats.operations import NatsOperation

_API: Final = "$JS.API."
_ACK: Final = "$JS.ACK."
_NANOSECONDS: Final = 1_000_000_000
_MOST: Final = 100_000
"""Maximum number of messages in any stream."""
_PULLS: Final = 512
"""Default limit on pending pull requests per consumer."""
_ID: Final = re.compile(rb"\r\nNats-Msg-Id:[ ]*([^\r\n]*)", re.I)
_NOBODY: Final = b"NATS/1.0 503\r\n\r\n"
_WINDOW: Final = 120 * _NANOSECONDS
_WAIT: Final = 30 * _NANOSECONDS
_PAGE: Final = 1024
_OUTER: Final = 150
"""Overhead of a stored message in bytes."""


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")


@frozen
class StoredMessage:
    number: int
    subject: str
    block: bytes
    payload: bytes
    at: float
    time: str

    @property
    def size(self) -> int:
        return len(self.subject) + len(self.block) + len(self.payload)


@define(eq=False)
class Stream:
    name: str
    config: dict[str, Any]
    created: str = field(factory=_now)
    messages: dict[int, StoredMessage] = field(factory=dict)
    consumers: dict[str, PullConsumer] = field(factory=dict)
    last: int = 0
    _ids: dict[str, tuple[float, int]] = field(factory=dict)
    _bytes: int = 0

    @property
    def state(self) -> dict[str, Any]:
        return {
            "messages": len(self.messages),
            "bytes": self._bytes,
            "first_seq": next(iter(self.messages), self.last + 1),
            "last_seq": self.last,
            "consumer_count": len(self.consumers),
            "num_subjects": len({one.subject for one in self.messages.values()}),
        }

    def store(self, operation: NatsOperation, block: bytes, now: float) -> dict[str, Any]:
        self._forget(now)
        found = _ID.search(block)
        id = "" if found is None else found[1].decode().strip()
        if id and id in self._ids:
            return {"stream": self.name, "seq": self._ids[id][1], "duplicate": True}
        message = StoredMessage(self.last + 1, operation.subject, block, operation.payload, now, _now())
        full = self._full(message.size)
        if full is not None and self.config.get("discard") == "new":
            return {"stream": self.name, "seq": 0, "error": {"code": 503, "err_code": 10077, "description": full}}
        while full is not None and self.messages:
            self.remove(next(iter(self.messages)))
            full = self._full(message.size)
        self.last += 1
        self.messages[self.last] = message
        self._bytes += message.size + _OUTER
        if id:
            self._ids[id] = now, self.last
        return {"stream": self.name, "seq": self.last}

    def overlaps(self, subject: str) -> bool:
        """Return True if the stream stores subjects that match a pattern."""
        return any(_overlap(subject, own) for own in self.config["subjects"])

    def _full(self, size: int) -> str | None:
        most, most_bytes = self.config.get("max_msgs", -1), self.config.get("max_bytes", -1)
        if len(self.messages) >= min(most if most > 0 else _MOST, _MOST):
            return "maximum messages exceeded"
        return "maximum bytes exceeded" if 0 < most_bytes < self._bytes + size + _OUTER else None

    def _forget(self, now: float) -> None:
        window = self.config.get("duplicate_window", _WINDOW) / _NANOSECONDS
        while self._ids and (first := next(iter(self._ids))) and self._ids[first][0] + window <= now:
            del self._ids[first]
        age = self.config.get("max_age", 0) / _NANOSECONDS
        while age and self.messages and (oldest := next(iter(self.messages.values()))).at + age <= now:
            self.remove(oldest.number)

    def remove(self, number: int) -> bool:
        """Remove a message. Returns `False` if it does not exist."""
        message = self.messages.pop(number, None)
        if message is not None:
            self._bytes -= message.size + _OUTER
        return message is not None


@define(eq=False)
class _Pull:
    inbox: str
    left: int
    bytes: float
    until: float
    heartbeat: float
    beat_at: float


@define(eq=False)
class PullConsumer:
    stream: Stream
    name: str
    config: dict[str, Any]
    _hand: Callable[[str, NatsOperation, bytes], bool]
    _next: int = 1
    """Sequence number of the next undelivered message."""
    _given: dict[int, tuple[float, int]] = field(factory=dict)
    """Unacknowledged messages, with redelivery times and delivery counts."""
    _pulls: deque[_Pull] = field(factory=deque)
    _sent: int = 0

    def begin(self, now: float) -> None:
        policy, last = self.config.get("deliver_policy", "all"), self.stream.last
        if policy == "new":
            self._next = last + 1
        elif policy == "by_start_sequence":
            self._next = int(self.config.get("opt_start_seq", 1))
        elif policy == "by_start_time":
            start = str(self.config.get("opt_start_time", ""))
            self._next = next((one.number for one in self.stream.messages.values() if one.time >= start), last + 1)

    @property
    def members(self) -> dict[str, Any]:
        pending = sum(number >= self._next and self._mine(one) for number, one in self.stream.messages.items())
        return {
            "stream_name": self.stream.name,
            "name": self.name,
            "config": self.config,
            "delivered": {"consumer_seq": self._sent, "stream_seq": self._next - 1},
            "num_ack_pending": len(self._given),
            "num_waiting": len(self._pulls),
            "num_pending": pending,
            "num_redelivered": sum(times > 1 for _, times in self._given.values()),
        }

    def pull(self, inbox: str, asked: dict[str, Any], now: float) -> None:
        if len(self._pulls) >= self.config.get("max_waiting", _PULLS):
            self._say(inbox, "409 Exceeded MaxWaiting")
            return
        beat = asked.get("idle_heartbeat", 0) / _NANOSECONDS
        until = now + asked["expires"] / _NANOSECONDS if asked.get("expires") else math.inf
        most = asked.get("max_bytes") or math.inf
        self._pulls.append(_Pull(inbox, int(asked.get("batch", 1)), most, until, beat, now + beat if beat else math.inf))
        self.deliver(now)

    def deliver(self, now: float) -> None:
        while self._pulls and (message := self._choose(now)) is not None:
            pull = self._pulls[0]
            if message.size > pull.bytes:
                self._pulls.popleft()
                if message.number not in self._given:
                    self._next = message.number
                self._end_pull(pull, "409 Message Size Exceeds MaxBytes")
                continue
            pull.bytes -= message.size
            before = self._given.get(message.number, (now, 0))
            times = before[1] + 1
            if self.config.get("ack_policy") != "none":
                self._given[message.number] = now + self.config.get("ack_wait", _WAIT) / _NANOSECONDS, times
            self._sent += 1
            reply = f"{_ACK}{self.stream.name}.{self.name}.{times}.{message.number}.{self._sent}.{round(now * 1e9)}.0"
            pull.left -= 1
            pull.beat_at = now + pull.heartbeat if pull.heartbeat else math.inf
            if not self._hand(
                pull.inbox, NatsOperation("PUB", message.subject, reply=reply, payload=message.payload), message.block
            ):
                pull.left = 0  # the client is gone
                if times > 1 or message.number in self._given:
                    self._given[message.number] = before
            if pull.left <= 0:
                self._pulls.popleft()

    def _choose(self, now: float) -> StoredMessage | None:
        for number, (when, _) in list(self._given.items()):
            if number not in self.stream.messages:
                del self._given[number]
            elif when <= now:
                return self.stream.messages[number]
        if len(self._given) >= self.config.get("max_ack_pending", 1000):
            return None
        while self._next <= self.stream.last:
            message = self.stream.messages.get(self._next)
            self._next += 1
            if message is not None and self._mine(message):
                return message
        return None

    def _mine(self, message: StoredMessage) -> bool:
        wanted = self.config.get("filter_subject")
        return not wanted or covers(str(wanted), message.subject)

    def acknowledged(self, number: int, word: bytes, now: float) -> None:
        given = self._given.get(number)
        if given is None:
            return
        if word.startswith(b"-NAK"):
            delay = msgspec.json.decode(word[4:]).get("delay", 0) / _NANOSECONDS if word[4:].strip() else 0.0
            self._given[number] = now + delay, given[1]
        elif word == b"+WPI":
            self._given[number] = now + self.config.get("ack_wait", _WAIT) / _NANOSECONDS, given[1]
        else:
            del self._given[number]
            if self.stream.config.get("retention") == "workqueue":
                self.stream.remove(number)
        self.deliver(now)

    def tick(self, now: float) -> None:
        """Redeliver due messages, end expired pull requests and send heartbeats."""
        self.deliver(now)
        for pull in [*self._pulls]:
            if pull.until <= now:
                self._pulls.remove(pull)
                self._end_pull(pull, "408 Request Timeout")
            elif pull.beat_at <= now:
                pull.beat_at = now + pull.heartbeat
                self._say(pull.inbox, "100 Idle Heartbeat")

    @property
    def due(self) -> float:
        """Time of the next `tick`."""
        again = min((when for when, _ in self._given.values()), default=math.inf) if self._pulls else math.inf
        return min([again, *(min(pull.until, pull.beat_at) for pull in self._pulls)])

    def end(self) -> None:
        while self._pulls:
            self._say(self._pulls.popleft().inbox, "409 Consumer Deleted")

    def _end_pull(self, pull: _Pull, status: str) -> None:
        self._say(pull.inbox, f"{status}\r\nNats-Pending-Messages: {pull.left}\r\nNats-Pending-Bytes: 0")

    def _say(self, inbox: str, status: str) -> None:
        self._hand(inbox, NatsOperation("PUB", inbox), f"NATS/1.0 {status}\r\n\r\n".encode())


class NatsStreams:
    """The streams of an engine.

    Args:
        hand: ``hand(at, operation, block)`` delivers a message to subscribers of `at`. It returns `False` without subscribers.
        time: Clock of the engine.
    """

    def __init__(self, hand: Callable[[str, NatsOperation, bytes], bool], time: Callable[[], float]) -> None:
        self._hand = hand
        self._time = time
        self._streams: dict[str, Stream] = {}
        self._captures: SubjectIndex[Stream] = SubjectIndex()
        self._changed = anyio.Event()

    async def run(self) -> None:
        while True:
            self._changed = anyio.Event()
            now = self._time()
            consumers = [consumer for stream in self._streams.values() for consumer in stream.consumers.values()]
            for consumer in consumers:
                consumer.tick(now)
            due = min((consumer.due for consumer in consumers), default=math.inf)
            with anyio.move_on_after(None if due == math.inf else max(due - self._time(), 0.0)):
                await self._changed.wait()

    def take(self, operation: NatsOperation, block: bytes) -> bool:
        """Handle a published message. Returns True if a stream or the API accepted the message."""
        self._changed.set()
        if operation.subject.startswith(_ACK):
            self._acknowledge(operation)
            return True
        if operation.subject.startswith(_API):
            self._asked(operation)
            return True
        now, taken = self._time(), False
        for stream in self._captures.match(operation.subject):
            answer = stream.store(operation, block, now)
            if operation.reply is not None:
                self._answer(operation.reply, answer)
            for consumer in stream.consumers.values():
                consumer.deliver(now)
            taken = True
        return taken

    def _answer(self, reply: str, members: dict[str, Any]) -> None:
        self._hand(reply, NatsOperation("PUB", reply, payload=msgspec.json.encode(members)), b"")

    def _acknowledge(self, operation: NatsOperation) -> None:
        _, _, stream, consumer, _, number, *_ = operation.subject.split(".")
        with suppress(_Refused):
            self._consumer([stream, consumer]).acknowledged(int(number), operation.payload, self._time())
        if operation.reply is not None:
            self._hand(operation.reply, NatsOperation("PUB", operation.reply), b"")

    # -- the API ---------------------------------------------------------------------------------------------------------

    def _asked(self, operation: NatsOperation) -> None:
        word = operation.subject[len(_API) :]
        asked: Any = msgspec.json.decode(operation.payload) if operation.payload else {}
        verb = next((verb for verb in _ACTS if word == verb or word.startswith(f"{verb}.")), None)
        inbox, pulls = operation.reply, word.startswith("CONSUMER.MSG.NEXT.")
        if inbox is None:
            return
        try:
            if pulls:
                self._consumer(word.split(".")[3:]).pull(inbox, asked, self._time())
            elif verb is not None:
                self._answer(inbox, _ACTS[verb](self, word[len(verb) + 1 :].split("."), asked))
            else:
                self._hand(inbox, NatsOperation("PUB", inbox), _NOBODY)
        except _Refused as refused:
            if pulls:
                self._hand(inbox, NatsOperation("PUB", inbox), _NOBODY)
            else:
                self._answer(inbox, {"error": dict(zip(("code", "err_code", "description"), refused.args, strict=True))})

    def _stream(self, names: list[str]) -> Stream:
        stream = self._streams.get(names[0])
        if stream is None:
            raise _Refused(404, 10059, "stream not found")
        return stream

    def _consumer(self, names: list[str]) -> PullConsumer:
        consumer = self._stream(names).consumers.get(names[1])
        if consumer is None:
            raise _Refused(404, 10014, "consumer not found")
        return consumer

    @property
    def info(self) -> dict[str, int]:
        return {"streams": len(self._streams), "consumers": sum(len(one.consumers) for one in self._streams.values())}

    def _stream_info(self, names: list[str], asked: Any) -> dict[str, Any]:
        stream = self._stream(names)
        state = stream.state
        if isinstance(asked, dict) and (wanted := asked.get("subjects_filter")):
            found = [one.subject for one in stream.messages.values() if covers(str(wanted), one.subject)]
            state["subjects"] = dict(Counter(found))
        return {"config": stream.config, "created": stream.created, "state": state}

    def _create_stream(self, names: list[str], asked: Any) -> dict[str, Any]:
        name = names[0]
        there = self._streams.get(name)
        if there is not None and there.config != asked:
            raise _Refused(400, 10058, "stream name already in use with a different configuration")
        if there is None:
            if asked.get("num_replicas", 1) > 1:
                raise _Refused(500, 10074, "replicas > 1 not supported in non-clustered mode")
            for subject in asked["subjects"]:
                if any(stream.overlaps(subject) for stream in self._streams.values()):
                    raise _Refused(400, 10065, "subjects overlap with an existing stream")
            there = self._streams[name] = Stream(name, asked)
            for subject in asked["subjects"]:
                self._captures.add(subject, there)
        return {"config": there.config, "state": there.state}

    def _delete_stream(self, names: list[str], asked: Any) -> dict[str, Any]:
        stream = self._stream(names)
        del self._streams[stream.name]
        for subject in stream.config["subjects"]:
            self._captures.remove(subject, stream)
        for consumer in stream.consumers.values():
            consumer.end()
        return {"success": True}

    def _names(self, names: list[str], asked: Any) -> dict[str, Any]:
        wanted = asked.get("subject", ">")
        found = [stream.name for stream in self._streams.values() if stream.overlaps(wanted)]
        return _page("streams", found, asked)

    def _message(self, names: list[str], asked: Any) -> dict[str, Any]:
        messages, wanted = self._stream(names).messages, asked.get("next_by_subj")
        if wanted:
            following = (
                one for number, one in messages.items() if number >= asked.get("seq", 1) and covers(wanted, one.subject)
            )
            message = next(following, None)
        else:
            message = messages.get(asked.get("seq", 0))
        if message is None:
            raise _Refused(404, 10037, "no message found")
        members = {"subject": message.subject, "seq": message.number, "time": message.time}
        if message.block:
            members["hdrs"] = base64.b64encode(message.block).decode()
        if message.payload:
            members["data"] = base64.b64encode(message.payload).decode()
        return {"message": members}

    def _delete_message(self, names: list[str], asked: Any) -> dict[str, Any]:
        if not self._stream(names).remove(asked.get("seq", 0)):
            raise _Refused(400, 10057, f"message [{asked.get('seq', 0)}] not found")
        return {"success": True}

    def _create_consumer(self, names: list[str], asked: Any) -> dict[str, Any]:
        stream, name = self._stream(names), names[1]
        config, there = asked["config"], stream.consumers.get(name)
        if there is None:
            _check_for_work(stream, config)
            there = stream.consumers[name] = PullConsumer(stream, name, config, self._hand)
            there.begin(self._time())
        elif asked.get("action") == "create" and any(there.config.get(member) != config[member] for member in config):
            raise _Refused(400, 10148, "consumer already exists")
        else:
            there.config = config
        return there.members

    def _delete_consumer(self, names: list[str], asked: Any) -> dict[str, Any]:
        consumer = self._consumer(names)
        del consumer.stream.consumers[consumer.name]
        consumer.end()
        return {"success": True}


def _check_for_work(stream: Stream, config: dict[str, Any]) -> None:
    if stream.config.get("retention") != "workqueue":
        return
    if config.get("deliver_policy", "all") != "all":
        raise _Refused(400, 10101, "consumer must be deliver all on workqueue stream")
    wanted = config.get("filter_subject") or ">"
    if any(_overlap(wanted, other.config.get("filter_subject") or ">") for other in stream.consumers.values()):
        raise _Refused(400, 10100, "filtered consumer not unique on workqueue stream")


class _Refused(Exception):
    """Arguments: code, err_code and description of the error."""


def _page(member: str, names: list[str], asked: Any) -> dict[str, Any]:
    begin = asked.get("offset", 0)
    page = names[begin : begin + _PAGE]
    return {"total": len(names), "offset": begin, "limit": _PAGE, member: page}


def _overlap(one: str, other: str) -> bool:
    return tokens_overlap(one.split("."), other.split("."))


_ACTS: Final[dict[str, Callable[[NatsStreams, list[str], Any], dict[str, Any]]]] = {
    "INFO": lambda all, names, asked: all.info,
    "STREAM.INFO": NatsStreams._stream_info,
    "STREAM.CREATE": NatsStreams._create_stream,
    "STREAM.DELETE": NatsStreams._delete_stream,
    "STREAM.NAMES": NatsStreams._names,
    "STREAM.MSG.GET": NatsStreams._message,
    "STREAM.MSG.DELETE": NatsStreams._delete_message,
    "CONSUMER.INFO": lambda all, names, asked: all._consumer(names).members,
    "CONSUMER.NAMES": lambda all, names, asked: _page("consumers", [*all._stream(names).consumers], asked),
    "CONSUMER.CREATE": NatsStreams._create_consumer,
    "CONSUMER.DURABLE.CREATE": NatsStreams._create_consumer,
    "CONSUMER.DELETE": NatsStreams._delete_consumer,
}
