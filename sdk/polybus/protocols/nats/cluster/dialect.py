"""The dialect among the nodes of a cluster: the buses beyond the engine are one bus with this one.

The engine's subscriptions are the directory: who handles a subject, whom a user is connected to, which node lives; where there
is nobody, it says so itself (503). What it does not say is added here: a node that cannot answer in the turn in which a request
comes says that it has it (102, with its name); nodes that have something of this one, or of which this one has something, are
asked once a second whether they are there. What one has refused before a handler saw it is asked elsewhere. Nodes tell what
they handle: a subject that nobody handles, and that was handled lately, is unavailable for a while before it counts as unknown.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from attrs import define, evolve

from ...._util.memo import Memo
from ....errors import Code, Forbidden, RemoteProtocolError
from ....message import Kind, Message
from ....plugins import (
    Due,
    Lost,
    NodeJoined,
    NodeLeft,
    Ready,
    Refused,
    ToAll,
    ToClient,
    ToGroup,
    ToNode,
    ToUser,
    Undelivered,
)
from ..._rules import milliseconds
from ..checks import refuse
from ..codec import HAVE_IT, failure
from ..connection import NatsConnection, NatsSubscription, Tokens
from ..failures import NO_RESPONDERS, ServerError, error_message, is_failure
from ..headers import (
    KIND,
    TTL,
    USER,
    HeaderBlock,
    one_line,
    without_those_of_engine,
    write_block,
)
from ..operations import INBOX_SID, write_named, write_publication
from ..stored import ToEngine, ToStore, give, give_unreadable, read_refusal, read_stored, word_of_engine, write_to_engine
from .known_handlers import KnownHandlers, bounded_list
from .liveness import PACE, Liveness
from .subjects import HANDLERS, NODE_LENGTH, NODE_LETTERS, ClusterSubjects, is_node, split_key

_NODES: Final = 4096
"""Nodes that are known at the most."""
_SOURCES: Final = 1024
"""Beginnings of reply subjects of publications that are remembered: a node has two, another program perhaps one for each."""
_OVER: Final = 1024
"""Requests that are remembered after their end: a cancel may follow."""
_ELSEWHERE: Final = 2
"""Times that a request is asked again which no handler has seen."""
_AT_ONCE: Final = 256
"""Requests of which it says so in one message."""
_LONGEST_FACT: Final = 200
"""Characters that are kept of what a node says of itself."""
_UNDELIVERED: Final = "undelivered"
_GONE: Final = "gone"
"""The reason of a node that has not got the client which is asked any more."""
_PUBLISHED: Final = "publish"
_PUBLISH, _REQUEST, _NOTIFY, _RESPONSE, _ERROR = Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.ERROR
_decode: Final = msgspec.json.Decoder(dict[str, Any]).decode
_encode: Final = msgspec.json.Encoder().encode


_AGAIN: Final = 2.0
_LONGEST_PAUSE: Final = 16.0
"""Seconds after which a publication is sent again of which the engine has said nothing: first, and at the most."""


@define(eq=False)
class Asked:
    """A request, or an open channel, of this node.

    Attributes:
        names: Where it was sent, and where answers come, on the wire.
        to: Whom it is for, or None: any node that handles it.
        at: Time at which it was last sent.
        frame: Its bytes, to be asked elsewhere, until somebody has it; None where it is for one alone.
        node: The node that has it, as soon as that is known.
        again: Times that it was asked elsewhere.
        controls: Written for the node that has it, before that is known.
        publication: Of a store, until the engine has said that it is stored.
        pause: Seconds after which that is sent again.
    """

    names: str
    to: Any
    at: float
    frame: bytes | None
    node: str = ""
    again: int = 0
    controls: list[tuple[str, bytes, bytes]] | None = None
    publication: Message | None = None
    pause: float = _AGAIN


class ClusterDialect:
    """One node on one connection. Implements `connection.NatsDialect`."""

    __slots__ = (
        "_answers",
        "_asked",
        "_connection",
        "_doubted",
        "_due",
        "_fresh",
        "_greeted",
        "_handled",
        "_hello_at",
        "_held",
        "_known",
        "_liveness",
        "_message",
        "_nodes",
        "_over",
        "_own",
        "_serial",
        "_sources",
        "_subjects",
        "_tokens",
        "_turn",
        "_turns",
        "_untold",
        "echo",
        "inbox",
        "node",
        "probes",
    )

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection
        self._message = connection.codec.message
        self.node: Final = "".join(connection.rng.choices(NODE_LETTERS, k=NODE_LENGTH))
        self._subjects = ClusterSubjects(connection.options.cluster, self.node, connection.codec.limits.subject)
        self._answers = self._subjects.answers
        self.inbox: str = f"{self._subjects.mine}>"
        self.probes: tuple[bytes, ...] = (write_publication(self._subjects.nobody, None, b"", b""),)
        self._own: tuple[str, ...] = (self._subjects.mine,)
        """The beginnings of the subjects at which this node is answered; of other connections of this bus, too."""
        self.echo: bool = True  # or the only member of a group would not hear its own node
        self._tokens = Tokens(connection.rng)
        self._asked: dict[str, Asked] = {}
        self._over: dict[str, Asked] = {}
        self._fresh: dict[Any, str] = {}
        """Requests of the last turns without an answer: the nodes that have asked, empty where it is none of ours."""
        self._turns: deque[list[Any]] = deque()
        """The ids of what came in each of these turns. The end of a turn is told when the next one may have begun already."""
        self._turn = -1
        self._held: dict[Any, str] = {}
        """Requests and channels of others that this node has."""
        self._serial = 0
        limits = connection.limits
        self._liveness = Liveness(limits.ping_interval + limits.ping_timeout)
        self._nodes: dict[str, str | None] = {}
        """The nodes that are known, and the bus that each is."""
        self._greeted: set[str] = set()
        """Nodes that are not known, have spoken since the last look, and were told that this one is there."""
        self._handled: dict[str, None] = {}
        """Patterns that this node handles, as they stand on the wire: the others are told."""
        self._untold = False
        self._known: KnownHandlers = connection.options.known_handlers
        self._doubted: set[str] = set()
        """Nodes that have told of a handler which the engine knows nothing of: the next look asks whether they are there."""
        self._sources: Memo[str, ToAll] = Memo(lambda beginning: ToAll(self._subjects.source(beginning)), _SOURCES)
        """Whom publications are from, by their reply subject without its last token."""
        self._due = math.inf
        self._hello_at = math.inf

    @property
    def idle(self) -> bool:
        """True if nothing is under way, in either direction."""
        return not (self._asked or self._held or self._fresh)

    @property
    def signs(self) -> Sequence[str]:
        """The beginning of the subjects at which this node is answered."""
        return self._own[:1]

    def know(self, signs: Sequence[str]) -> None:
        """Take what another connection of this bus says for what this side has said."""
        self._own = (self._subjects.mine, *signs)

    def holds(self, key: Any) -> bool:
        """Tell whether a request or channel is one that this node has asked, or has, on this connection."""
        return key in self._asked or key in self._held or key in self._fresh or key in self._over

    def asked(self) -> list[str]:
        """List the tokens of the requests and channels that are not over."""
        return [*self._asked]

    @property
    def due(self) -> float:
        """The time at which what is under way is looked at, or the others are greeted again."""
        return min(self._due, self._hello_at)

    def ready(self) -> None:
        """Say hello to the others, who answer."""
        connection, subjects = self._connection, self._subjects
        connection.events.append(Ready(bare=True, node=self.node))
        connection.subscribe(f"{subjects.cluster}.a", tag=ClusterDialect._announced)
        self._say(f"{subjects.cluster}.a", "hello", reply=f"{subjects.mine}h")

    def _say(self, subject: str, word: str, reply: str | None = None) -> None:
        options = self._connection.options
        facts: dict[str, Any] = {word: self.node, "bus": options.member, "name": options.client, "host": options.host}
        if word == "hello" and self._handled:
            facts["handles"] = bounded_list(self._handled)
        self._connection.frames.append(write_publication(subject, reply, b"", _encode(facts)))

    def servers_joined(self) -> None:
        """Say hello again, in a moment: a network that was cut in two may be one again, and its halves know nothing of it."""
        self._hello_at = self._connection.heard + PACE
        self._connection.events.append(Due(self._hello_at))

    def leave(self) -> None:
        """Say goodbye to the others."""
        self._say(f"{self._subjects.cluster}.a", "bye")

    def lost(self) -> None:
        """Forget all: the connection is gone, and the link ends what was under way."""
        self._asked.clear()
        self._over.clear()
        self._fresh.clear()
        self._turns.clear()
        self._held.clear()
        self._known.all_left(self._connection.heard)

    # -- in: by what it was subscribed for ----------------------------------------------------------------------------------

    def delivered(self, subject: str, sid: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        """Take a message of the server."""
        if sid == INBOX_SID:
            if headers is None and subject.startswith(self._answers):
                token = subject[len(self._answers) :]
                asked = self._asked.get(token)
                if asked is not None and asked.publication is None:  # as nearly all are: what a handler has returned
                    del self._asked[token]
                    self._connection.events.append(self._message(_RESPONSE, "", token, None, payload))
                    return
            self._for_this_node(subject[len(self._subjects.mine) :], reply, headers, payload)
            return
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if subscription is None:  # it was given up while this was on its way
            return
        try:
            subscription.tag(self, subscription, subject, reply, headers, payload)
        except RemoteProtocolError as error:
            self._connection.events.append(Refused(error))
            if reply is not None and subscription.tag in _QUESTIONS:
                self._answer_malformed(error, reply)

    def _published(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        if reply is not None and reply.startswith(self._own):  # its echo, or where it is told what was stored
            return
        if not self._connection.subscriptions.counts(subscription, subject):
            return
        if headers is not None and (headers.only is not None or headers.again):  # it was heard when it was published first
            return
        to = _NO_SOURCE if reply is None else self._sources[reply.rpartition(".")[0]]
        message = self._message(_PUBLISH, self._subjects.named[subject], None, headers, payload, None, to)
        self._connection.events.append(message)

    def _published_to_group(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        assert subscription.queue is not None
        if headers is not None and (headers.only is not None or headers.again):
            return
        to = ToGroup(subscription.queue, subscription.name)
        self._publication(self._subjects.rest(subject), to, headers, payload)

    def _published_to_user(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        if reply is None or not reply.startswith(self._own):
            key, rest = split_key(self._subjects.rest(subject))
            self._publication(rest, ToUser(key), headers, payload)

    def _publication(self, rest: str, to: Any, headers: HeaderBlock | None, payload: bytes) -> None:
        message = self._message(_PUBLISH, self._subjects.read[rest], None, headers, payload, None, to)
        self._connection.events.append(message)

    def _stored(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        """A stored publication that a reader of this node has asked for, or a word of the engine to it."""
        if headers is not None and headers.status is not None:
            self._connection.events.append(word_of_engine(subscription.name, headers))
            return
        to = give(subscription.name, reply, headers)
        message = self._message(_PUBLISH, self._subjects.named[subject], None, headers, payload, None, to)
        self._connection.events.append(message)

    def _unreadable(self, subscription: NatsSubscription, subject: str, error: RemoteProtocolError, frame: bytes) -> bool:
        """Give a reader what cannot be read. False where nobody knows what it was."""
        read = self._connection.codec.reader.headers.read
        try:
            to, headers, payload = give_unreadable(subscription.name, error.text, frame, read)
            named = self._subjects.named[subject]
        except RemoteProtocolError:
            return False
        self._connection.events.append(self._message(_PUBLISH, named, None, headers, payload, None, to))
        return True

    def _asked_of_handlers(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        self._question(self._subjects.named[subject], None, reply, headers, payload)

    def _asked_of_user(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        key, rest = split_key(self._subjects.rest(subject))
        self._question(self._subjects.read[rest], ToUser(key), reply, headers, payload)

    def _announced(
        self, subscription: NatsSubscription, subject: str, reply: str | None, headers: HeaderBlock | None, payload: bytes
    ) -> None:
        """A node has come, or leaves."""
        try:
            facts = _decode(payload)
        except (ValueError, RecursionError):
            facts = {}
        hello, bye = facts.get("hello"), facts.get("bye")
        if is_node(hello):
            if not self._subjects.of_node(hello, "").startswith(self._own):
                self._joined(hello, facts)
                if reply is not None:
                    self._say(self._subjects.of_node(hello, "h"), "hello")
        elif is_node(bye):
            if bye in self._nodes:
                del self._nodes[bye]
                self._known.left(bye, self._connection.heard)
                self._connection.events.append(NodeLeft(bye, orderly=True))
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

    def _greet(self, node: str) -> None:
        """Say hello to a node that is there and is not known: it was taken for gone, or its hello was lost."""
        if node not in self._nodes and node != self.node and node not in self._greeted and len(self._greeted) < _NODES:
            self._greeted.add(node)
            self._say(self._subjects.of_node(node, "h"), "hello", reply=f"{self._subjects.mine}h")

    # -- in: what is for this node alone ------------------------------------------------------------------------------------

    def _for_this_node(self, rest: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        what, _, tail = rest.partition(".")
        try:
            if what == "a":
                self._answered(tail, headers, payload)
            elif what == "c":
                self._controlled(tail, headers, payload)
            elif what == "t":
                self._several_taken(headers, payload)
            elif what == "r":
                self._question(self._subjects.read[tail], ToNode(self.node), reply, headers, payload)
            elif what == "d":
                key, subject = split_key(tail)
                to = ToClient(self.node, key)
                if headers is not None and headers.kind == _PUBLISHED:
                    self._publication(subject, to, headers, payload)
                else:
                    self._question(self._subjects.read[subject], to, reply, headers, payload)
            elif what == "y":
                if reply is not None and self._subjects.asker(reply):
                    self._connection.frames.append(self._have_it(reply))
            elif what == "h":
                self._announced_here(reply, payload)
            elif what != "p":  # there comes only that nobody wanted a publication
                raise refuse(f"{rest[:60]!r} is nothing that a node is told", "invalid_subject")
        except RemoteProtocolError as error:
            self._connection.events.append(Refused(error))
            if reply is not None and what not in _NOT_ANSWERED:
                self._answer_malformed(error, reply)

    def _announced_here(self, reply: str | None, payload: bytes) -> None:
        if payload:  # otherwise it is said that nobody else is there
            self._announced(_NOBODY, "", reply, None, payload)

    def _question(self, subject: str | int, to: Any, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        """Make a request, an open, or where no answer is wanted a notification."""
        events, serial, asker = self._connection.events, 0, ""
        if reply is None:
            message = self._message(_NOTIFY, subject, None, headers, payload, None, to)
        else:
            asker = self._subjects.askers[reply.rpartition(".")[0]]
            if not asker:  # others may ask again under the same reply subject
                self._serial = serial = self._serial + 1
            message = self._message(_REQUEST, subject, (reply, serial), headers, payload, reply, to)
        if headers is not None and headers.user is not None:
            message.attributes["user"] = headers.user
        if reply is not None:
            if headers is not None and headers.kind is not None:
                self._open(message, headers.kind)
                self._hold(message.id, asker)
            else:
                self._fresh[message.id] = asker
                if self._turn != self._connection.turn:
                    self._turn = self._connection.turn
                    self._turns.append([])
                    events.append(Due(-math.inf))
                self._turns[-1].append(message.id)
        events.append(message)

    def _open(self, message: Message, kind: str) -> None:
        """May raise `RemoteProtocolError`: it opens nothing."""
        parts = kind.split(" ")
        if parts[0] != "open" or len(parts) != 4 or not (_is_number(parts[2]) and _is_number(parts[3])):
            raise refuse(f"{kind[:60]!r} is nothing that is asked", "malformed")
        message.kind = Kind.OPEN
        message.attributes.update(mode=parts[1], credit=int(parts[2]), hops=int(parts[3]))

    def _hold(self, id: Any, asker: str) -> None:
        """Have a request or a channel for longer than a turn, and say so."""
        self._held[id] = asker
        if asker:
            self._connection.frames.append(self._have_it(id[0]))
            self._look_at(self._connection.heard + PACE)

    def _have_it(self, reply: str, payload: bytes = b"") -> bytes:
        return write_publication(reply, None, f"NATS/1.0 {HAVE_IT} {self.node}\r\n\r\n".encode(), payload)

    def _say_taken(self, turn: list[Any]) -> None:
        """Say which of the requests of a turn this node still has: one word to each asker."""
        tokens: dict[str, list[str]] = {}
        for id in turn:
            asker = self._fresh.pop(id, None)
            if asker is not None:
                self._held[id] = asker
                if asker:
                    tokens.setdefault(asker, []).append(id[0].rpartition(".")[2])
        for asker, its in tokens.items():
            for start in range(0, len(its), _AT_ONCE):
                payload = " ".join(its[start : start + _AT_ONCE]).encode()
                self._connection.frames.append(self._have_it(self._subjects.of_node(asker, "t"), payload))
        if tokens:
            self._look_at(self._connection.heard + PACE)

    def _controlled(self, tail: str, headers: HeaderBlock | None, payload: bytes) -> None:
        """A cancel, item, credit or end of a node that has asked this one."""
        asker, dot, token = tail.partition(".")
        if not dot or headers is None or headers.kind is None:
            raise refuse(f"{tail[:60]!r} names no request, or does not say what is done to it", "malformed")
        id = (self._subjects.of_node(asker, f"a.{token}"), 0)
        message = self._control(id, headers, payload)
        if message.kind is Kind.CANCEL:
            self._fresh.pop(id, None)
            self._held.pop(id, None)
        self._connection.events.append(message)

    def _control(self, id: Any, headers: HeaderBlock, payload: bytes) -> Message:
        """May raise `RemoteProtocolError`: a kind that is not known."""
        word, _, argument = (headers.kind or "").partition(" ")
        kind = _CONTROLS.get(word)
        if kind is None:
            raise refuse(f"{(headers.kind or '')[:60]!r} is nothing that is done to a request", "malformed")
        if kind is Kind.END and headers.error is not None:
            message = error_message(id, headers, payload)
            message.kind = Kind.END
            return message
        if kind is Kind.ITEM:
            return self._message(kind, "", id, headers, payload)
        message = Message(kind, "", id)
        if kind is Kind.CREDIT:
            if not _is_number(argument):
                raise refuse(f"a credit of {argument[:20]!r}", "malformed")
            message.attributes["credit"] = int(argument)
        return message

    def _answered(self, token: str, headers: HeaderBlock | None, payload: bytes) -> None:
        events = self._connection.events
        asked = self._asked.get(token)
        if asked is not None and asked.publication is not None and not (headers and headers.status == NO_RESPONDERS):
            self._answered_of_store(token, headers, payload)
            return
        if headers is not None and headers.status == HAVE_IT and headers.error is None:
            self._taken(token, asked, headers.text)
            return
        node = self._liveness.answered(token)
        if node is not None:
            self._gone(node)
            return
        if headers is not None and headers.kind is not None and headers.kind != _UNDELIVERED:
            events.append(self._control(token, headers, payload))
            return
        if asked is None:
            if not self._tokens.was_given(token):
                raise refuse("an answer to a token that was never given", "unknown_id")
        elif headers is not None and asked.to is not None and headers.reason == _GONE:
            del self._asked[token]
            events.append(Lost((token,), _not_there(asked.to), sent=False))
            return
        elif headers is not None and (headers.kind == _UNDELIVERED or headers.status == NO_RESPONDERS):
            if self._refused(token, asked, headers):
                return
        self._asked.pop(token, None)
        if headers is not None and is_failure(headers):
            events.append(error_message(token, headers, payload))
            return
        events.append(self._message(_RESPONSE, "", token, headers, payload))

    def _answered_of_store(self, token: str, headers: HeaderBlock | None, payload: bytes) -> None:
        """Take what the engine says of a publication; whoever else has heard it, and answers, says nothing of the store."""
        said = None if headers is not None else read_stored(payload)
        if said is not None:
            del self._asked[token]
            answer = Message(_RESPONSE, "", token)
            answer.decoded = said
            self._connection.events.append(answer)

    def _refused(self, token: str, asked: Asked, headers: HeaderBlock) -> bool:
        """Ask elsewhere what no handler has seen, or say that nobody is there. False where that is to be told as it came."""
        if headers.kind == _UNDELIVERED:
            if asked.frame is None or asked.to is not None or asked.again >= _ELSEWHERE:
                return False
            asked.again += 1
            asked.at = self._connection.heard
            self._connection.frames.append(asked.frame)
            return True
        if headers.error is not None or isinstance(asked.to, (ToEngine, ToStore)):
            return False
        del self._asked[token]
        if asked.to is None:
            self._connection.events.append(self._nobody_handles(token, asked))
        else:
            self._connection.events.append(Lost((token,), _not_there(asked.to), sent=False))
            if not isinstance(asked.to, ToUser):
                self._gone(asked.to.node)
        return True

    def _nobody_handles(self, token: str, asked: Asked) -> Message:
        """Make the error of a request that no node handles: one that was handled lately is worth asking again."""
        subject, now = self._subjects.rest(asked.names.partition(" ")[0]), self._connection.heard
        last = self._known.last_seen(subject, now)
        code, text = Code.UNIMPLEMENTED, "nobody handles this in the cluster"
        if last is not None:
            ago = f"its last handler went {now - last:.3g} s ago" if last < now else "its handlers are just coming or going"
            code = Code.UNAVAILABLE
            text = f"{text} now, and {ago}: ask again, for example with retry=Retry()"
            doubted = self._known.nodes_with(subject) & self._nodes.keys()
            if doubted:
                self._doubted |= doubted
                self._look_at(now + PACE)
        return Message(_ERROR, "", token, code=code, attributes={"text": text, "reason": None, "detail": None})

    def _taken(self, token: str, asked: Asked | None, node: str) -> None:
        """A node has said that it has a request, or that it is there. May raise `RemoteProtocolError`: that is no node."""
        if not is_node(node):
            raise refuse(f"{node[:60]!r} is no node, and has no request", "malformed")
        if asked is not None:
            self._found(asked, token, node)
            self._look_at(self._connection.heard + PACE)
        elif (over := self._over.get(token)) is not None:
            self._found(over, token, node)
        else:
            self._liveness.answered(token)
        self._greet(node)

    def _several_taken(self, headers: HeaderBlock | None, payload: bytes) -> None:
        """A node has said which requests of one turn it has. May raise `RemoteProtocolError`: it has not."""
        tokens = payload.decode("ascii", "replace").split(" ")
        if headers is None or headers.status != HAVE_IT or len(tokens) > _AT_ONCE:
            raise refuse(f"{payload[:60]!r} is no list of requests that a node has", "malformed")
        for token in tokens:
            self._taken(token, self._asked.get(token), headers.text)

    def _found(self, asked: Asked, token: str, node: str) -> None:
        asked.node, asked.frame = node, None
        controls, asked.controls = asked.controls, None
        for kind, block, payload in controls or ():
            self._write_control(node, token, kind, block, payload)

    def malformed(self, error: RemoteProtocolError, subject: str, sid: str, frame: bytes) -> None:
        """Note which request a malformed answer belongs to, and answer a malformed question."""
        if sid == INBOX_SID and subject.startswith(self._subjects.answers):
            error.reply_id = subject.removeprefix(self._subjects.answers)
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if subscription is not None and subscription.tag is ClusterDialect._stored:
            if self._unreadable(subscription, subject, error, frame):
                return
        self._connection.events.append(Refused(error))
        if subscription is not None and error.answer_id is not None and subscription.queue is not None:
            self._answer_malformed(error, error.answer_id)

    def _answer_malformed(self, error: RemoteProtocolError, reply: str) -> None:
        with suppress(RemoteProtocolError):  # it is to be answered where no asker is
            self._subjects.asker(reply)
            self._connection.answer_malformed(error, reply)

    def judged(self, error: ServerError) -> ServerError:
        """Give an error with all that it means: a node that can be told nothing, or cannot answer, would swallow requests."""
        subjects, cluster = self._subjects, self._subjects.cluster
        needed = self.inbox if error.subscribing else subjects.nobody
        if error.refused not in (needed, f"{cluster}.a"):
            return error
        text = f"{error.text}; allow this user to publish and to subscribe to {cluster}.>, or correct the name of the cluster"
        return evolve(error, text=text, ends=True, error=Forbidden(f"the NATS server says: {text}"))

    def not_allowed(self, error: ServerError) -> None:
        """Tell whom it concerns: who has asked, or subscribed; else it is a lost message."""
        connection, subject, text = self._connection, error.refused or "", f"the NATS server says: {error.text}"
        if (word := read_refusal(error)) is not None:
            connection.events.append(word)
            return
        if error.subscribing:
            connection.subscriptions.refuse(subject, error.queue)
            told = Message(Kind.SUBSCRIBE, subject)
        else:
            token = next((token for token, asked in self._asked.items() if asked.names.partition(" ")[0] == subject), None)
            if token is not None:
                del self._asked[token]
                facts: dict[str, Any] = {"text": text, "reason": None, "detail": None}
                connection.events.append(Message(_ERROR, "", token, code=Code.PERMISSION_DENIED, attributes=facts))
                return
            told = Message(_PUBLISH, subject)
        connection.events.append(Undelivered(told, Code.PERMISSION_DENIED, "forbidden", text))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float, peer_key: Any = None) -> str | None:
        """Queue a message. For a request or an open: its token."""
        kind = message.kind
        if kind is _REQUEST or kind is Kind.OPEN:
            return self._ask(message, now)
        if kind is _PUBLISH:
            self._publish(message)
        elif kind is _RESPONSE or kind is _ERROR:
            self._answer(message)
        elif kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            self._subscribe(message)
        elif kind is _NOTIFY:
            to = None if message.extras is None else message.extras.get("to")
            names = self._subject(message, to)
            if message.extras is not None and "reader" in message.extras:
                names = f"{names} {self._subjects.of_reader(message.extras['reader'])}"
            self._connection.queue(self._frame(names, message, None))
        else:
            self._send_control(message)
        return None

    def _subject(self, message: Message, to: Any) -> str:
        """The subject that a request, an open or a notification goes to."""
        subjects = self._subjects
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

    def _frame(self, names: str, message: Message, kind: str | None) -> bytes:
        """PUB or HPUB; `names` are the subject and, behind a blank, where an answer is wanted."""
        connection = self._connection
        payload, own = connection.codec.payload(message)
        extras = message.extras
        user = None if extras is None else extras.get("user")
        if extras is not None and isinstance(to := extras.get("to"), (ToEngine, ToStore)):
            return write_to_engine(connection, names, to, message, payload, own)
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

    def _ask(self, message: Message, now: float) -> str:
        kind = to = None
        if message.extras is not None:
            to = message.extras.get("to")
        if to is None:
            names = self._subjects.asked[message.subject]
        else:
            names = f"{self._subject(message, to)} {self._answers}"
        if message.kind is Kind.OPEN:
            facts = message.attributes
            kind = f"open {facts.get('mode', 'stream')} {facts.get('credit', 0)} {facts.get('hops', 0)}"
        token = self._tokens.next()
        frame = self._frame(names + token, message, kind)
        self._connection.queue(frame)
        if to is None:
            self._asked[token] = Asked(names, None, now, frame)
        else:
            asked = self._asked[token] = Asked(names, to, now, None, self._holder(to))
            if isinstance(to, ToStore):
                asked.publication = message
            elif isinstance(to, ToEngine):
                return token
        if self._due == math.inf:
            self._look_at(now + PACE)
        return token

    def _holder(self, to: Any) -> str:
        """The node that has what is asked, as far as that is known; of the engine this one, which need not ask for its life."""
        if isinstance(to, ToUser):
            return ""
        return self.node if isinstance(to, (ToEngine, ToStore)) else str(to.node)

    def _publish(self, message: Message) -> None:
        subjects, extras = self._subjects, message.extras
        to = None if extras is None else extras.get("to")
        if to is None:
            frame = self._frame(subjects.published[message.subject], message, None)
        elif isinstance(to, ToUser):
            subject = subjects.keyed("u", to.key, subjects.written[message.subject])
            frame = self._frame(f"{subject} {subjects.echo}", message, None)
        else:
            subject = subjects.keyed(f"n.{to.node}.d", to.id, subjects.written[message.subject])
            frame = self._frame(subject, message, _PUBLISHED)
        self._connection.queue(frame)

    def _answer(self, message: Message) -> None:
        connection, id = self._connection, message.id
        if message.kind is _RESPONSE:
            payload, own = connection.codec.payload(message)
        else:
            payload, own = failure(message)
            if message.attributes.get("undelivered") and self._subjects.asker(id[0]):
                own.append((KIND, _UNDELIVERED))
        block = write_block(message.headers, own, connection.limits.headers) if own or message.headers else b""
        connection.queue(write_publication(id[0], None, block, payload))
        if self._fresh.pop(id, None) is None:
            self._held.pop(id, None)

    def _subscribe(self, message: Message) -> None:
        connection, subjects, extras = self._connection, self._subjects, message.extras or {}
        change: Callable[..., None] = connection.subscribe
        if message.kind is Kind.UNSUBSCRIBE:
            change = _unsubscribing(connection)
        if "reader" in extras:
            key = extras["reader"]
            # In a group, of one: what is on its way when it is given up still comes.
            change(self._subjects.of_reader(key), HANDLERS, tag=ClusterDialect._stored, name=key)
            return
        if "user" in extras:
            key = extras["user"]
            change(subjects.keyed("u", key, ">"), tag=ClusterDialect._published_to_user)
            change(subjects.keyed("k", key, ">"), HANDLERS, tag=ClusterDialect._asked_of_user)
            return
        pattern = subjects.pattern(message.subject)
        if extras.get("handler"):
            change(f"{subjects.cluster}.r.{pattern}", HANDLERS, tag=ClusterDialect._asked_of_handlers)
            if message.kind is Kind.SUBSCRIBE and pattern not in self._handled:
                self._handled[pattern] = None
                self._untold = True
                connection.events.append(Due(-math.inf))
        elif (group := extras.get("group")) is not None:
            change(f"{subjects.cluster}.p.{pattern}", group, tag=ClusterDialect._published_to_group, name=message.subject)
        else:
            change(f"{subjects.cluster}.p.{pattern}", tag=ClusterDialect._published, name=message.subject)

    def _send_control(self, message: Message) -> None:
        """Write a cancel, item, credit or end to the node at the other end of a request or channel."""
        connection, kind, id = self._connection, message.kind, message.id
        own: list[tuple[str, str]] = []
        payload, word = b"", _WORDS[kind]
        if kind is Kind.ITEM:
            payload, own = connection.codec.payload(message)
        elif kind is Kind.CREDIT:
            word = f"{word} {message.attributes.get('credit', 0)}"
        elif kind is Kind.END and message.code is not None and message.code is not Code.OK:
            payload, own = failure(message)
            if isinstance(id, tuple) and message.attributes.get("undelivered"):
                word = _UNDELIVERED
        own.append((KIND, word))
        block = write_block(None, own, connection.limits.headers)
        if isinstance(id, tuple):
            connection.queue(write_publication(id[0], None, block, payload))
            return
        asked = self._asked.get(id) or self._over.pop(id, None)
        if asked is None or isinstance(asked.to, (ToEngine, ToStore)):  # which knows no such words
            return
        if asked.node:
            self._write_control(asked.node, id, word, block, payload)
        else:
            asked.controls = [*(asked.controls or ()), (word, block, payload)]
            self._over.setdefault(id, asked)

    def _write_control(self, node: str, token: str, word: str, block: bytes, payload: bytes) -> None:
        subject = self._subjects.of_node(node, f"c.{self.node}.{token}")
        self._connection.queue(write_publication(subject, None, block, payload))

    def forget(self, key: Any, now: float) -> None:
        """Forget a request or a channel that is over; a cancel of it may still follow."""
        if isinstance(key, tuple):
            self._fresh.pop(key, None)
            self._held.pop(key, None)
            return
        asked = self._asked.pop(key, None)
        if asked is not None:
            asked.frame = asked.publication = None
            if len(self._over) >= _OVER:
                del self._over[next(iter(self._over))]
            self._over[key] = asked

    # -- time ------------------------------------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        """Look soon after that time at what is under way."""
        if when < self._due:
            self._due = when
            self._connection.events.append(Due(when))

    def tick(self, now: float) -> None:
        """At the end of a turn: say which of its requests this node has. Once a second: look at what is under way."""
        if self._turns:
            turn = self._turns.popleft()
            if not self._fresh.keys().isdisjoint(turn):
                self._say_taken(turn)
        if self._untold:
            self._untold = False
            self._say(f"{self._subjects.cluster}.a", "hello")  # which wants no answer
        if now < self._due and now < self._hello_at:
            return
        if now >= self._due:
            self._due = math.inf
            self._look(now)
        if now >= self._hello_at:
            self._hello_at = math.inf
            self._say(f"{self._subjects.cluster}.a", "hello", reply=f"{self._subjects.mine}h")
        due = self.due
        if due < math.inf:  # who calls remembers the nearest time alone
            self._connection.events.append(Due(due))

    def _look(self, now: float) -> None:
        """Ask the nodes that have something of this one, or of which it has something, whether they are there."""
        self._greeted.clear()
        nodes = dict.fromkeys((*(asked.node for asked in self._asked.values()), *self._held.values()))
        nodes.update(dict.fromkeys(self._doubted))
        self._doubted.clear()
        untaken = [token for token, asked in self._asked.items() if not asked.node and asked.at <= now - PACE]
        if untaken:
            nodes.update(dict.fromkeys(self._nodes))
        for node in nodes:
            if node and node != self.node:
                self._probe(node, now)
        for node in self._liveness.silent(now):
            self._liveness.forget(node)
            self._gone(node)
        # The asker of what nobody has said to have: if a node is gone since it was asked, that one may have had it.
        gone = self._liveness.last_gone
        lost = [token for token in untaken if self._asked[token].at <= now - 2 * PACE and self._asked[token].at < gone]
        for token in lost:
            del self._asked[token]
        if lost:
            self._connection.events.append(Lost(lost, "a node is gone, and no other says that it has this request"))
        for token, asked in self._asked.items():
            if asked.publication is not None and asked.at + asked.pause <= now < asked.to.until:
                self._send_again(token, asked, now)
        if self._asked or any(self._held.values()):
            self._look_at(now + PACE)

    def _send_again(self, token: str, asked: Asked, now: float) -> None:
        """Send a publication again of which the engine has said nothing; what it says of either counts."""
        assert asked.publication is not None
        asked.at, asked.pause = now, min(2 * asked.pause, _LONGEST_PAUSE)
        asked.to = asked.publication.attributes["to"] = evolve(asked.to, again=True)
        self._connection.queue(self._frame(asked.names + token, asked.publication, None))

    def _probe(self, node: str, now: float) -> None:
        token = self._liveness.ask(node, self._tokens.next(), now)
        subject = self._subjects.of_node(node, "y")
        self._connection.frames.append(write_publication(subject, self._subjects.answers + token, b"", b""))

    def _gone(self, node: str) -> None:
        """End what a node had, and what it has asked: it is gone."""
        self._liveness.last_gone = self._connection.heard
        taken = [token for token, asked in self._asked.items() if asked.node == node]
        given = [id for id, asker in self._held.items() if asker == node]
        for token in taken:
            del self._asked[token]
        for id in given:
            del self._held[id]
        events = self._connection.events
        if taken or given:
            events.append(Lost((*taken, *given), f"the node {node} of the cluster is gone"))
        if node in self._nodes:
            del self._nodes[node]
            self._known.left(node, self._connection.heard)
            events.append(NodeLeft(node))


_QUESTIONS: Final = (ClusterDialect._asked_of_handlers, ClusterDialect._asked_of_user)
_NOT_ANSWERED: Final = frozenset(("a", "c", "h", "p", "t"))
"""The first token of what a node is told, and has no answer even where it is not understood."""
_NO_SOURCE: Final = ToAll()
_NOBODY: Final = NatsSubscription(0, "", None)
_CONTROLS: Final = {"cancel": Kind.CANCEL, "item": Kind.ITEM, "credit": Kind.CREDIT, "end": Kind.END}
_WORDS: Final = {kind: word for word, kind in _CONTROLS.items()}


def _unsubscribing(connection: NatsConnection) -> Callable[..., None]:
    def change(subject: str, queue: str | None = None, *, tag: Any = None, name: Any = None) -> None:
        connection.unsubscribe(subject, queue)

    return change


def _fact(value: Any) -> str | None:
    return value[:_LONGEST_FACT] if isinstance(value, str) else None


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 12


def _not_there(to: Any) -> str:
    if isinstance(to, ToUser):
        return f"the user {to.key!r} is connected to no node of the cluster"
    if isinstance(to, ToClient):
        return "the node of that peer is gone"
    return f"the node {to.node} of the cluster is gone"
