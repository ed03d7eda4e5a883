"""The other nodes of a cluster: which live, and what they handle.

A node says hello when it connects, and again when it handles something new; the others answer. Nodes that have something of
this one, or of which this one has something, are asked once a second whether they are there: the engine answers for those that
are not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from attrs import define, evolve, field

from ....errors import Code, Forbidden
from ....message import Kind, Message
from ....plugins import Due, NodeJoined, NodeLeft
from ..checks import refuse
from ..connection import NatsConnection, RequestTokens
from ..failures import ServerError
from ..operations import write_publication
from .known_handlers import KnownHandlers, bounded_list
from .subjects import ClusterSubjects, is_node

_NODES: Final = 4096
"""Nodes that are known at the most."""
_LONGEST_FACT: Final = 200
"""Characters that are kept of what a node says of itself."""
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


PACE: Final = 1.0
"""Seconds between two looks at what is under way."""


@define(eq=False)
class Liveness:
    """The nodes that have been asked, and have not answered yet."""

    _patience: float
    """Seconds after which a node that does not answer is taken for gone."""
    _asked: dict[str, tuple[str, float]] = field(factory=dict)
    """Token of the question and its time, by node."""
    _by_token: dict[str, str] = field(factory=dict)
    """Nodes by the token of the question."""
    _looked: float = float("-inf")
    """The time of the last look."""
    last_gone: float = float("-inf")
    """The time at which a node was last found to be gone."""

    def ask(self, node: str, token: str, now: float) -> str:
        """Note a question. Its token: that of the one which is out already, where the node may have died with it."""
        out = self._asked.get(node)
        if out is not None:
            return out[0]
        self._asked[node] = token, now
        self._by_token[token] = node
        return token

    def answered(self, token: str) -> str | None:
        """The node that a question with this token was asked; it is not out any more."""
        node = self._by_token.pop(token, None)
        if node is not None:
            del self._asked[node]
        return node

    def forget(self, node: str) -> None:
        """Ask no more about a node."""
        asked = self._asked.pop(node, None)
        if asked is not None:
            del self._by_token[asked[0]]

    def silent(self, now: float) -> list[str]:
        """The nodes that have not answered for too long.

        After a time in which this node itself was away (stopped, or its machine asleep) they have that long once more: what
        they have said meanwhile is still to be read.
        """
        away, self._looked = now - self._looked > 2 * PACE, now
        if away:
            self._asked.update({node: (token, now) for node, (token, _) in self._asked.items()})
        return [node for node, (_, since) in self._asked.items() if now - since > self._patience]


class ClusterNodes:
    """The nodes that one connection knows of."""

    __slots__ = (
        "_connection",
        "_greeted",
        "_handled",
        "_known",
        "_nodes",
        "_subjects",
        "_tokens",
        "doubted",
        "hello_at",
        "liveness",
        "untold",
    )

    def __init__(self, connection: NatsConnection, subjects: ClusterSubjects, tokens: RequestTokens) -> None:
        self._connection = connection
        self._subjects = subjects
        self._tokens = tokens
        limits = connection.limits
        self.liveness: Final = Liveness(limits.ping_interval + limits.ping_timeout)
        self._nodes: dict[str, str | None] = {}
        """The nodes that are known, and the bus that each is."""
        self._greeted: set[str] = set()
        """Nodes that are not known, have spoken since the last look, and were told that this one is there."""
        self._handled: dict[str, None] = {}
        """Patterns that this node handles, as they stand on the wire: the others are told."""
        self.untold: bool = False
        """True if the others have not been told of a pattern."""
        self._known: KnownHandlers = connection.options.known_handlers
        self.doubted: set[str] = set()
        """Nodes that have told of a handler which the engine knows nothing of: the next look asks whether they are there."""
        self.hello_at: float = math.inf
        """Time at which all are greeted again."""

    # -- out -------------------------------------------------------------------------------------------------------------

    def say(self, subject: str, word: str, reply: str | None = None) -> None:
        """Say hello or bye to those at a subject."""
        options = self._connection.options
        facts: dict[str, Any] = {word: self._subjects.node, "bus": options.member, "name": options.client, "host": options.host}
        if word == "hello" and self._handled:
            facts["handles"] = bounded_list(self._handled)
        self._connection.frames.append(write_publication(subject, reply, b"", _encode(facts)))

    def greet_all(self) -> None:
        """Say hello to the others, who answer."""
        self.hello_at = math.inf
        self.say(f"{self._subjects.cluster}.a", "hello", reply=f"{self._subjects.mine}h")

    def greet_later(self) -> None:
        """Say hello again, in a moment: a network that was cut in two may be one again, and its halves know nothing of it."""
        self.hello_at = self._connection.heard + PACE
        self._connection.events.append(Due(self.hello_at))

    def greet(self, node: str) -> None:
        """Say hello to a node that is there and is not known: it was taken for gone, or its hello was lost."""
        if (
            node not in self._nodes
            and node != self._subjects.node
            and node not in self._greeted
            and len(self._greeted) < _NODES
        ):
            self._greeted.add(node)
            self.say(self._subjects.of_node(node, "h"), "hello", reply=f"{self._subjects.mine}h")

    def handle(self, pattern: str) -> None:
        """Tell the others, at the end of the turn, that this node handles a pattern."""
        if pattern not in self._handled:
            self._handled[pattern] = None
            self.untold = True
            self._connection.events.append(Due(-math.inf))

    def tell(self) -> None:
        """Tell the others what this node handles, and want no answer."""
        self.untold = False
        self.say(f"{self._subjects.cluster}.a", "hello")

    # -- in --------------------------------------------------------------------------------------------------------------

    def announced(self, own: tuple[str, ...], reply: str | None, payload: bytes) -> None:
        """A node has come, or goes; `own` are beginnings of subjects of this one. May raise `RemoteProtocolError`: neither."""
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
            # Of a bus that has come back the earlier name is gone, as are others by and by, which nobody has asked for since.
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
        """Give an error with all that it means: a node that can be told nothing, or cannot answer, would swallow requests."""
        cluster = self._subjects.cluster
        needed = f"{self._subjects.mine}>" if error.subscribing else self._subjects.nobody
        if error.refused not in (needed, f"{cluster}.a"):
            return error
        text = f"{error.text}; allow this user to publish and to subscribe to {cluster}.>, or correct the name of the cluster"
        return evolve(error, text=text, ends=True, error=Forbidden(f"the NATS server says: {text}"))

    # -- which live ------------------------------------------------------------------------------------------------------

    def look(self, concerned: Iterable[str], now: float, everyone: bool) -> list[str]:
        """Ask nodes whether they are there, or everyone. Gives those that have not answered for too long."""
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
        """Take note that a node is gone."""
        self.liveness.last_gone = self._connection.heard
        self._left(node)

    def all_gone(self) -> None:
        """Take note that the engine is gone, and with it all nodes."""
        self._known.all_left(self._connection.heard)

    # -- what they handle ------------------------------------------------------------------------------------------------

    def nobody_handles(self, token: str, subject: str) -> Message:
        """Make the error of a request that no node handles: one that was handled lately is worth asking again."""
        now = self._connection.heard
        last = self._known.last_seen(subject, now)
        code, text = Code.UNIMPLEMENTED, "nobody handles this in the cluster"
        if last is not None:
            ago = f"its last handler went {now - last:.3g} s ago" if last < now else "its handlers are just coming or going"
            code = Code.UNAVAILABLE
            text = f"{text} now, and {ago}: ask again, for example with retry=Retry()"
            self.doubted |= self._known.nodes_with(subject) & self._nodes.keys()
        return Message(Kind.ERROR, "", token, code=code, attributes={"text": text, "reason": None, "detail": None})


def _fact(value: Any) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) else None
