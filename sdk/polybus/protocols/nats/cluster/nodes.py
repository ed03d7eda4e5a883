"""The other nodes of a cluster, their handlers, and the messages between nodes.

A node greets the other nodes when it connects or gets a new handler, and they answer. Announced handlers make it possible to
distinguish a subject that had a handler until recently from an unknown subject.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from attrs import define, evolve, field

from ....errors import Code, Forbidden
from ....message import Kind, Message
from ....plugins import Due, NodeJoined, NodeLeft, ToClient, ToUser
from ....plugins.tools import SubjectIndex
from ..._shared import milliseconds
from ..codec import HAVE_IT, NatsCodec
from ..connection import NatsConnection, RequestTokens
from ..headers import KIND, TTL, USER, HeaderBlock, ServerError, error_message, one_line, without_those_of_engine, write_block
from ..operations import refuse, write_named, write_publication
from ..stored import ToEngine, ToStore, write_to_engine
from .subjects import ClusterSubjects, is_node

TOLD: Final = 1024  # Maximum number of patterns that a node announces, and that are kept per node
TOLD_CHARACTERS: Final = 32 * 1024  # Maximum length of these patterns together, in characters
_MOST: Final = 4 * 1024 * 1024  # Characters kept for all present nodes, and again for departed ones
_MOST_GONE: Final = 64 * 1024  # Patterns kept for departed nodes. An entry takes some 300 bytes, however short the pattern is.


@define(eq=False)
class KnownHandlers:
    """The patterns that other nodes handle, or handled until recently, in wire form.

    A pattern is remembered for `remember` seconds after the last node with that pattern has left.
    """

    remember: float = 0.0
    _announced: dict[str, tuple[str, ...]] = field(factory=dict, init=False)
    _present: SubjectIndex[str] = field(factory=lambda: SubjectIndex[str](), init=False)  # Nodes by announced pattern
    _gone: dict[str, float] = field(factory=dict, init=False)
    """Time when a node with this pattern left most recently, by pattern, oldest first."""
    _departed: SubjectIndex[str] = field(factory=lambda: SubjectIndex[str](), init=False)  # The patterns in `_gone`
    _kept: int = field(default=0, init=False)
    _kept_gone: int = field(default=0, init=False)

    def told(self, node: str, patterns: Any) -> None:
        if not isinstance(patterns, list) or not self.remember:
            return
        _ = self._forget(node)
        # The index would read a pattern with a slash as a URI, but escaped patterns contain no slash.
        kept = tuple(dict.fromkeys(pattern for pattern in _bounded(patterns) if "/" not in pattern))
        size = sum(map(len, kept))
        if not kept or self._kept + size > _MOST:
            return
        self._kept += size
        self._announced[node] = kept
        for pattern in kept:
            self._present.add(pattern, node)

    def left(self, node: str, now: float) -> None:
        """Record that a node has left. Its patterns are remembered for a while."""
        for pattern in self._forget(node):
            self._drop(pattern)
            self._gone[pattern] = now
            self._kept_gone += len(pattern)
            self._departed.add(pattern, pattern)
        while self._gone and (self._gone_too_many() or next(iter(self._gone.values())) + self.remember <= now):
            self._drop(next(iter(self._gone)))

    def all_left(self, now: float) -> None:
        for node in list(self._announced):
            self.left(node, now)

    def nodes_with(self, subject: str) -> set[str]:
        return set(self._present.match(subject))

    def last_seen(self, subject: str, now: float) -> float | None:
        """Return when the last handler of a subject left: `now` if a handler is present, `None` if the subject is unknown."""
        if self._present.match(subject):
            return now
        last = max((self._gone[pattern] for pattern in self._departed.match(subject)), default=None)
        return None if last is None or last + self.remember <= now else last

    def _forget(self, node: str) -> tuple[str, ...]:
        patterns = self._announced.pop(node, ())
        for pattern in patterns:
            self._kept -= len(pattern)
            self._present.remove(pattern, node)
        return patterns

    def _gone_too_many(self) -> bool:
        return self._kept_gone > _MOST or len(self._gone) > _MOST_GONE

    def _drop(self, pattern: str) -> None:
        if self._gone.pop(pattern, None) is not None:
            self._kept_gone -= len(pattern)
            self._departed.remove(pattern, pattern)


def _bounded(patterns: Iterable[Any]) -> Iterable[str]:
    rest = TOLD_CHARACTERS
    for number, pattern in enumerate(patterns):
        if number >= TOLD:
            return
        if isinstance(pattern, str) and pattern:
            rest -= len(pattern)
            if rest < 0:
                return
            yield pattern


_NODES: Final = 4096
_LONGEST_FACT: Final = 200
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode

PACE: Final = 1.0


@define(eq=False)
class Liveness:
    """Tracks nodes that have not answered a liveness check yet."""

    _patience: float  # Seconds after which a silent node counts as failed
    _asked: dict[str, tuple[str, float]] = field(factory=dict)
    _by_token: dict[str, str] = field(factory=dict)
    _looked: float = float("-inf")
    last_gone: float = float("-inf")

    def ask(self, node: str, token: str, now: float) -> str:
        """Start a check and return its token. A pending check keeps its token: the node may have failed since it began."""
        if (out := self._asked.get(node)) is not None:
            return out[0]
        self._asked[node] = token, now
        self._by_token[token] = node
        return token

    def answered(self, token: str) -> str | None:
        if (node := self._by_token.pop(token, None)) is not None:
            del self._asked[node]
        return node

    def forget(self, node: str) -> None:
        if (asked := self._asked.pop(node, None)) is not None:
            del self._by_token[asked[0]]

    def silent(self, now: float) -> list[str]:
        """Return the nodes that have been silent for too long.

        If this process was paused, the timeout of each check restarts, because answers may be waiting to be read.
        """
        away, self._looked = now - self._looked > 2 * PACE, now
        if away:
            self._asked.update({node: (token, now) for node, (token, _) in self._asked.items()})
        return [node for node, (_, since) in self._asked.items() if now - since > self._patience]


class ClusterNodes:
    def __init__(self, connection: NatsConnection, subjects: ClusterSubjects, tokens: RequestTokens) -> None:
        self._connection = connection
        self._subjects = subjects
        self._tokens = tokens
        limits = connection.limits
        self.liveness: Final = Liveness(limits.ping_interval + limits.ping_timeout)
        self._nodes: dict[str, str | None] = {}
        self._greeted: set[str] = set()  # Unknown nodes that this node has greeted since the last look
        self._handled: dict[str, None] = {}
        self.untold: bool = False
        self._known: KnownHandlers = connection.options.known_handlers
        self.doubted: set[str] = set()  # Nodes that announced a handler unknown to the engine; the next look checks them
        self.hello_at: float = math.inf

    # -- out -------------------------------------------------------------------------------------------------------------

    def say(self, subject: str, word: str, reply: str | None = None) -> None:
        options = self._connection.options
        facts: dict[str, Any] = {word: self._subjects.node, "bus": options.member, "name": options.client, "host": options.host}
        if word == "hello" and self._handled:
            facts["handles"] = list(_bounded(self._handled))
        self._connection.frames.append(write_publication(subject, reply, b"", _encode(facts)))

    def greet_all(self) -> None:
        self.hello_at = math.inf
        self.say(f"{self._subjects.cluster}.a", "hello", reply=f"{self._subjects.mine}h")

    def greet_later(self) -> None:
        """Greet all nodes soon. A partitioned network may have healed without either half noticing."""
        self.hello_at = self._connection.heard + PACE
        self._connection.events.append(Due(self.hello_at))

    def greet(self, node: str) -> None:
        """Greet a node that is present but unknown because it was silent for too long or its hello was lost."""
        known = node in self._nodes or node == self._subjects.node
        if not known and node not in self._greeted and len(self._greeted) < _NODES:
            self._greeted.add(node)
            self.say(self._subjects.of_node(node, "h"), "hello", reply=f"{self._subjects.mine}h")

    def handle(self, pattern: str) -> None:
        if pattern not in self._handled:
            self._handled[pattern] = None
            self.untold = True
            self._connection.events.append(Due(-math.inf))

    def tell(self) -> None:
        self.untold = False
        self.say(f"{self._subjects.cluster}.a", "hello")

    # -- in --------------------------------------------------------------------------------------------------------------

    def announced(self, own: tuple[str, ...], reply: str | None, payload: bytes) -> None:
        """Handle a hello or goodbye. `own` contains this node's prefixes, and the sender expects a hello at `reply`."""
        try:
            facts = _decode(payload)
        except (ValueError, RecursionError):
            facts = {}
        hello, bye = facts.get("hello"), facts.get("bye")
        if is_node(hello):
            if not self._subjects.of_node(hello, "").startswith(own):
                self._joined(hello, facts)
                if reply is not None:
                    self.say(self._subjects.of_node(hello, "h"), "hello")
        elif is_node(bye):
            self._left(bye, orderly=True)
        else:
            raise refuse("neither hello nor goodbye of a node", "malformed")

    def _joined(self, node: str, facts: dict[str, Any]) -> None:
        if node in self._nodes:
            self._known.told(node, facts.get("handles"))
            return
        now, told = self._connection.heard, {name: _fact(facts.get(name)) for name in ("bus", "name", "host")}
        bus = told["bus"]
        full = len(self._nodes) >= _NODES
        for other, its_bus in self._nodes.items():
            # Check the earlier node of a bus that has returned and, at the limit, every node, so that failed nodes are removed.
            if full or (its_bus is not None and its_bus == bus):
                self._probe(other, now)
        if not full:
            self._nodes[node] = bus
            self._known.told(node, facts.get("handles"))
            self._connection.events.append(NodeJoined(node, told))

    def _left(self, node: str, orderly: bool = False) -> None:
        if node in self._nodes:
            del self._nodes[node]
            self._known.left(node, self._connection.heard)
            self._connection.events.append(NodeLeft(node, orderly=orderly))

    def judged(self, error: ServerError) -> ServerError:
        """Mark an error as fatal if it prevents this node from receiving or answering, so that requests would be lost."""
        cluster = self._subjects.cluster
        needed = f"{self._subjects.mine}>" if error.subscribing else self._subjects.nobody
        if error.refused not in (needed, f"{cluster}.a"):
            return error
        text = f"{error.text}; allow this user to publish and to subscribe to {cluster}.>, or correct the name of the cluster"
        return evolve(error, text=text, ends=True, error=Forbidden(f"the NATS server says: {text}"))

    # -- liveness ---------------------------------------------------------------------------------------------------------

    def look(self, concerned: Iterable[str], now: float, everyone: bool) -> list[str]:
        """Check the given nodes, or all nodes, and return the nodes that have been silent for too long."""
        self._greeted.clear()
        nodes = dict.fromkeys((*concerned, *self.doubted, *(self._nodes if everyone else ())))
        self.doubted.clear()
        for node in nodes:
            if node and node != self._subjects.node:
                self._probe(node, now)
        silent = self.liveness.silent(now)
        for node in silent:
            self.liveness.forget(node)
        return silent

    def _probe(self, node: str, now: float) -> None:
        token = self.liveness.ask(node, self._tokens.next(), now)
        subject = self._subjects.of_node(node, "y")
        self._connection.frames.append(write_publication(subject, self._subjects.answers + token, b"", b""))

    def gone(self, node: str) -> None:
        self.liveness.last_gone = self._connection.heard
        self._left(node)

    def all_gone(self) -> None:
        self._known.all_left(self._connection.heard)

    # -- handlers ---------------------------------------------------------------------------------------------------------

    def nobody_handles(self, token: str, subject: str) -> Message:
        """Return the error for a request without a handler. The error is retryable if there was a handler until recently."""
        now = self._connection.heard
        last = self._known.last_seen(subject, now)
        code, text = Code.UNIMPLEMENTED, "no node of the cluster handles this"
        if last is not None:
            ago = f"its last handler left {now - last:.3g} s ago" if last < now else "its handlers are just joining or leaving"
            code = Code.UNAVAILABLE
            text = f"{text} now, and {ago}: retry, for example with retry=Retry()"
            self.doubted |= self._known.nodes_with(subject) & self._nodes.keys()
        return Message(Kind.ERROR, "", token, code=code, attributes={"text": text, "reason": None, "detail": None})


def _fact(value: Any) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) else None


# -- messages between nodes --------------------------------------------------------------------------------------------

PUBLISHED: Final = "publish"
_CONTROLS: Final = {"cancel": Kind.CANCEL, "item": Kind.ITEM, "credit": Kind.CREDIT, "end": Kind.END}
WORDS: Final = {kind: word for word, kind in _CONTROLS.items()}

_AGAIN: Final = 2.0
LONGEST_PAUSE: Final = 16.0  # Initial and maximum wait, in seconds, before an unconfirmed publication is sent again


@define(eq=False)
class AskedRequest:
    names: str  # Wire subject and reply subject
    to: Any  # Address; None for any node with a handler
    at: float  # Time of the last attempt
    frame: bytes | None  # Bytes for another attempt, until a node has sent a receipt; None if addressed to one node
    node: str = ""  # Handling node, once known
    again: int = 0
    controls: list[tuple[str, bytes, bytes]] | None = None  # Control messages that wait until the handling node is known
    publication: Message | None = None  # Publication for a store, until confirmed
    pause: float = _AGAIN  # Seconds until it is sent again


def subject_of(subjects: ClusterSubjects, message: Message, to: Any) -> str:
    if to is None:
        return subjects.handled[message.subject]
    if isinstance(to, ToEngine):
        return str(message.subject)
    name = subjects.written[message.subject]
    if isinstance(to, ToUser):
        return subjects.keyed("k", to.key, name)
    if isinstance(to, ToStore):
        return to.at or f"{subjects.cluster}.p.{name}"
    if isinstance(to, ToClient):
        return subjects.keyed(f"n.{to.node}.d", to.id, name)
    return subjects.of_node(to.node, f"r.{name}")


def write_frame(connection: NatsConnection, names: str, message: Message, kind: str | None) -> bytes:
    payload, own = connection.codec.payload(message)
    extras = message.extras
    user = None if extras is None else extras.get("user")
    if extras is not None and isinstance(to := extras.get("to"), (ToEngine, ToStore)):
        return write_to_engine(names, to, message, payload, own, connection.limits.headers)
    if kind is None and user is None and not own and not message.headers:
        block = b"" if message.ttl is None else connection.codec.deadlines[message.ttl]
        return write_named(names, block, payload)
    if message.ttl is not None:
        own.append((TTL, str(milliseconds(message.ttl))))
    if kind is not None:
        own.append((KIND, kind))
    if user is not None:
        own.append((USER, one_line(user)))
    fields = without_those_of_engine(message.headers)
    return write_named(names, write_block(fields, own, connection.limits.headers), payload)


def write_published(connection: NatsConnection, subjects: ClusterSubjects, message: Message) -> bytes:
    to = None if message.extras is None else message.extras.get("to")
    if to is None:
        return write_frame(connection, subjects.published[message.subject], message, None)
    if isinstance(to, ToUser):
        subject = subjects.keyed("u", to.key, subjects.written[message.subject])
        return write_frame(connection, f"{subject} {subjects.echo}", message, None)
    subject = subjects.keyed(f"n.{to.node}.d", to.id, subjects.written[message.subject])
    return write_frame(connection, subject, message, PUBLISHED)


def write_have_it(node: str, reply: str, payload: bytes = b"") -> bytes:
    return write_publication(reply, None, f"NATS/1.0 {HAVE_IT} {node}\r\n\r\n".encode(), payload)


def read_open(message: Message, kind: str) -> None:
    parts = kind.split(" ")
    if parts[0] != "open" or len(parts) != 4 or not (_is_number(parts[2]) and _is_number(parts[3])):
        raise refuse(f"{kind[:60]!r} is not a kind of request", "malformed")
    message.kind = Kind.OPEN
    message.attributes.update(mode=parts[1], credit=int(parts[2]), hops=int(parts[3]))


def read_control(codec: NatsCodec, id: Any, headers: HeaderBlock, payload: bytes) -> Message:
    word, _, argument = (headers.kind or "").partition(" ")
    kind = _CONTROLS.get(word)
    if kind is None:
        raise refuse(f"{(headers.kind or '')[:60]!r} is not a control message", "malformed")
    if kind is Kind.END and headers.error is not None:
        message = error_message(id, headers, payload)
        message.kind = Kind.END
        return message
    if kind is Kind.ITEM:
        return codec.message(kind, "", id, headers, payload)
    message = Message(kind, "", id)
    if kind is Kind.CREDIT:
        if not _is_number(argument):
            raise refuse(f"a credit of {argument[:20]!r}", "malformed")
        message.attributes["credit"] = int(argument)
    return message


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def not_there(to: Any) -> str:
    if isinstance(to, ToUser):
        return f"the user {to.key!r} is connected to no node of the cluster"
    if isinstance(to, ToClient):
        return "the node of that peer is gone"
    return f"the node {to.node} of the cluster is gone"
