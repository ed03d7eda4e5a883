"""The cluster-node dialect, which joins all buses on the engine into one bus. `docs/reference/cluster.md` describes it.

The engine's subscriptions serve as the directory of handlers, users and nodes. A request to a subject without a subscriber
receives a 503. This module adds features that the engine lacks: receipts, liveness checks of nodes that share a request or a
channel, and retries of requests that a node rejected before its handler saw them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final, TypeAlias

from attrs import evolve

from ....errors import Code, RemoteProtocolError
from ....message import Kind, Message
from ....plugins import Due, Lost, Ready, Refused, ToAll, ToClient, ToGroup, ToNode, ToUser, Undelivered
from ..._shared import Memo
from ..codec import HAVE_IT, failure
from ..connection import NatsConnection, NatsDialect, NatsSubscription
from ..headers import KIND, NO_RESPONDERS, HeaderBlock, ServerError, error_message, is_failure, write_block
from ..operations import INBOX_SID, refuse, write_named, write_publication
from ..stored import ToEngine, ToStore, read_refusal, read_stored
from .nodes import (
    LONGEST_PAUSE,
    PACE,
    PUBLISHED,
    WORDS,
    AskedRequest,
    ClusterNodes,
    not_there,
    read_control,
    read_open,
    subject_of,
    write_frame,
    write_have_it,
    write_published,
)
from .subjects import HANDLERS, NODE_LENGTH, NODE_LETTERS, ClusterSubjects, is_node, split_key

Headers: TypeAlias = HeaderBlock | None
_SOURCES: Final = 1024  # Cached prefixes of publications' reply subjects: a third-party client may use one per message
_OVER: Final = 1024  # Ended requests that are remembered, because a cancel may follow
_ELSEWHERE: Final = 2
_AT_ONCE: Final = 256
_UNDELIVERED: Final = "undelivered"
_GONE: Final = "gone"  # Reason for a request to a client that has left the node
_PUBLISH, _REQUEST, _NOTIFY, _RESPONSE, _ERROR = Kind.PUBLISH, Kind.REQUEST, Kind.NOTIFY, Kind.RESPONSE, Kind.ERROR


class ClusterDialect(NatsDialect):
    def __init__(self, connection: NatsConnection) -> None:
        self.node: Final = "".join(connection.rng.choices(NODE_LETTERS, k=NODE_LENGTH))
        self._subjects = ClusterSubjects(connection.options.cluster, self.node, connection.codec.limits.subject)
        super().__init__(connection, f"{self._subjects.mine}>")
        self._answers = self._subjects.answers
        self.probes: tuple[bytes, ...] = (write_publication(self._subjects.nobody, None, b"", b""),)
        self._own: tuple[str, ...] = (self._subjects.mine,)
        """Prefixes of this node's reply subjects, including the prefixes of the bus's other connection."""
        self.echo: bool = True  # or the only member of a group would not get its own node's messages
        self._asked: dict[str, AskedRequest] = {}
        self._over: dict[str, AskedRequest] = {}
        self._fresh: dict[Any, str] = {}
        """Unanswered requests of recent event-loop iterations, with the nodes that sent them (empty for other clients)."""
        self._turns: deque[list[Any]] = deque()
        """Ids of the requests in each event-loop iteration. The next may begin before the bus reports the end of the last."""
        self._turn = -math.inf  # Time of the last turn: everything that the transport delivers together has the same time
        self._held: dict[Any, str] = {}
        self._serial = 0
        self._nodes = ClusterNodes(connection, self._subjects, self._tokens)
        self._sources: Memo[str, ToAll] = Memo(lambda beginning: ToAll(self._subjects.source(beginning)), _SOURCES)
        self._due = math.inf

    @property
    def idle(self) -> bool:
        return not (self._asked or self._held or self._fresh)

    @property
    def signs(self) -> Sequence[str]:
        return self._own[:1]

    def know(self, signs: Sequence[str]) -> None:
        self._own = (self._subjects.mine, *signs)

    def holds(self, key: Any) -> bool:
        return key in self._asked or key in self._held or key in self._fresh or key in self._over

    def asked(self) -> list[str]:
        return [*self._asked]

    @property
    def due(self) -> float:
        return min(self._due, self._nodes.hello_at)

    def named(self, subject: str) -> str | int:
        return self._subjects.named[subject]

    def ready(self) -> None:
        connection, subjects = self._connection, self._subjects
        connection.events.append(Ready(bare=True, node=self.node))
        connection.subscribe(f"{subjects.cluster}.a", tag=ClusterDialect._announced)
        self._nodes.greet_all()

    def servers_joined(self) -> None:
        self._nodes.greet_later()

    def leave(self) -> None:
        self._nodes.say(f"{self._subjects.cluster}.a", "bye")

    def lost(self) -> None:
        self._asked.clear()
        self._over.clear()
        self._fresh.clear()
        self._turns.clear()
        self._held.clear()
        self._nodes.all_gone()

    # -- in: by the tag of the subscription ----------------------------------------------------------------------------------

    def delivered(self, subject: str, sid: str, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        if sid == INBOX_SID:
            if headers is None and subject.startswith(self._answers):
                token = subject[len(self._answers) :]
                asked = self._asked.get(token)
                if asked is not None and asked.publication is None:  # the usual case: a handler's result
                    del self._asked[token]
                    self._connection.events.append(self._message(_RESPONSE, "", token, None, payload))
                    return
            self._for_this_node(subject[len(self._subjects.mine) :], reply, headers, payload)
            return
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if subscription is None:  # ended while the message was in flight
            return
        try:
            subscription.tag(self, subscription, subject, reply, headers, payload)
        except RemoteProtocolError as error:
            self._connection.events.append(Refused(error))
            if reply is not None and subscription.tag in _QUESTIONS:
                self._answer_malformed(error, reply)

    def _published(self, sub: NatsSubscription, subject: str, reply: str | None, headers: Headers, payload: bytes) -> None:
        if reply is not None and reply.startswith(self._own):  # this node's own publication, or a confirmation from the store
            return
        if not self._connection.subscriptions.counts(sub, subject):
            return
        if headers is not None and (headers.only is not None or headers.again):  # received when it was first published
            return
        to = _NO_SOURCE if reply is None else self._sources[reply.rpartition(".")[0]]
        message = self._message(_PUBLISH, self._subjects.named[subject], None, headers, payload, None, to)
        self._connection.events.append(message)

    def _for_group(self, sub: NatsSubscription, subject: str, reply: str | None, headers: Headers, payload: bytes) -> None:
        assert sub.queue is not None
        if headers is not None and (headers.only is not None or headers.again):
            return
        to = ToGroup(sub.queue, sub.name)
        self._publication(self._subjects.rest(subject), to, headers, payload)

    def _for_user(self, sub: NatsSubscription, subject: str, reply: str | None, headers: Headers, payload: bytes) -> None:
        if reply is None or not reply.startswith(self._own):
            key, rest = split_key(self._subjects.rest(subject))
            self._publication(rest, ToUser(key), headers, payload)

    def _publication(self, rest: str, to: Any, headers: HeaderBlock | None, payload: bytes) -> None:
        message = self._message(_PUBLISH, self._subjects.read[rest], None, headers, payload, None, to)
        self._connection.events.append(message)

    def _to_handlers(self, sub: NatsSubscription, subject: str, reply: str | None, headers: Headers, payload: bytes) -> None:
        self._question(self._subjects.named[subject], None, reply, headers, payload)

    def _to_user(self, sub: NatsSubscription, subject: str, reply: str | None, headers: Headers, payload: bytes) -> None:
        key, rest = split_key(self._subjects.rest(subject))
        self._question(self._subjects.read[rest], ToUser(key), reply, headers, payload)

    def _announced(self, sub: NatsSubscription, subject: str, reply: str | None, headers: Headers, payload: bytes) -> None:
        self._nodes.announced(self._own, reply, payload)

    # -- in: addressed to this node only -------------------------------------------------------------------------------------

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
                if headers is not None and headers.kind == PUBLISHED:
                    self._publication(subject, to, headers, payload)
                else:
                    self._question(self._subjects.read[subject], to, reply, headers, payload)
            elif what == "y":
                if reply is not None and self._subjects.asker(reply):
                    self._connection.frames.append(write_have_it(self.node, reply))
            elif what == "h":
                if payload:  # otherwise the engine reports that there is no other node
                    self._nodes.announced(self._own, reply, payload)
            elif what != "p":  # "p" only reports that a publication had no subscriber
                raise refuse(f"{rest[:60]!r} is not a message for a node", "invalid_subject")
        except RemoteProtocolError as error:
            self._connection.events.append(Refused(error))
            if reply is not None and what not in _NOT_ANSWERED:
                self._answer_malformed(error, reply)

    def _question(self, subject: str | int, to: Any, reply: str | None, headers: HeaderBlock | None, payload: bytes) -> None:
        events, serial, asker = self._connection.events, 0, ""
        if reply is None:
            message = self._message(_NOTIFY, subject, None, headers, payload, None, to)
        else:
            asker = self._subjects.askers[reply.rpartition(".")[0]]
            if not asker:  # another client may reuse its reply subject
                self._serial = serial = self._serial + 1
            message = self._message(_REQUEST, subject, (reply, serial), headers, payload, reply, to)
        if headers is not None and headers.user is not None:
            message.attributes["user"] = headers.user
        if reply is not None:
            if headers is not None and headers.kind is not None:
                read_open(message, headers.kind)
                self._held[message.id] = asker
                if asker:  # a channel lasts longer than a turn
                    self._connection.frames.append(write_have_it(self.node, reply))
                    self._look_at(self._connection.heard + PACE)
            else:
                self._fresh[message.id] = asker
                if self._turn != self._connection.heard or not self._turns:
                    self._turn = self._connection.heard
                    self._turns.append([])
                    events.append(Due(-math.inf))
                self._turns[-1].append(message.id)
        events.append(message)

    def _say_taken(self, turn: list[Any]) -> None:
        """Send each node one receipt for all of its requests in an event-loop iteration that are still unanswered."""
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
                self._connection.frames.append(write_have_it(self.node, self._subjects.of_node(asker, "t"), payload))
        if tokens:
            self._look_at(self._connection.heard + PACE)

    def _controlled(self, tail: str, headers: HeaderBlock | None, payload: bytes) -> None:
        asker, dot, token = tail.partition(".")
        if not dot or headers is None or headers.kind is None:
            raise refuse(f"{tail[:60]!r} has no request, or no kind of message", "malformed")
        id = (self._subjects.of_node(asker, f"a.{token}"), 0)
        message = read_control(self._connection.codec, id, headers, payload)
        if message.kind is Kind.CANCEL:
            self._fresh.pop(id, None)
            self._held.pop(id, None)
        self._connection.events.append(message)

    def _answered(self, token: str, headers: HeaderBlock | None, payload: bytes) -> None:
        events = self._connection.events
        asked = self._asked.get(token)
        if asked is not None and asked.publication is not None and not (headers and headers.status == NO_RESPONDERS):
            self._answered_of_store(token, headers, payload)
            return
        if headers is not None and headers.status == HAVE_IT and headers.error is None:
            self._taken(token, asked, headers.text)
            return
        node = self._nodes.liveness.answered(token)
        if node is not None:
            self._gone(node)
            return
        if headers is not None and headers.kind is not None and headers.kind != _UNDELIVERED:
            events.append(read_control(self._connection.codec, token, headers, payload))
            return
        if asked is None:
            if not self._tokens.was_given(token):
                raise refuse("an answer to an unknown token", "unknown_id")
        elif headers is not None and asked.to is not None and headers.reason == _GONE:
            del self._asked[token]
            events.append(Lost((token,), not_there(asked.to), sent=False))
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
        """Handle the engine's confirmation of a publication. Answers from other subscribers are ignored."""
        said = None if headers is not None else read_stored(payload)
        if said is not None:
            del self._asked[token]
            answer = Message(_RESPONSE, "", token)
            answer.decoded = said
            self._connection.events.append(answer)

    def _refused(self, token: str, asked: AskedRequest, headers: HeaderBlock) -> bool:
        """Resend an unseen request, or report that there is no receiver. Returns False if the error must be passed on."""
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
            subject = self._subjects.rest(asked.names.partition(" ")[0])
            self._connection.events.append(self._nodes.nobody_handles(token, subject))
            if self._nodes.doubted:
                self._look_at(self._connection.heard + PACE)
        else:
            self._connection.events.append(Lost((token,), not_there(asked.to), sent=False))
            if not isinstance(asked.to, ToUser):
                self._gone(asked.to.node)
        return True

    def _taken(self, token: str, asked: AskedRequest | None, node: str) -> None:
        if not is_node(node):
            raise refuse(f"{node[:60]!r} is not a node and has no request", "malformed")
        if asked is not None:
            self._found(asked, token, node)
            self._look_at(self._connection.heard + PACE)
        elif (over := self._over.get(token)) is not None:
            self._found(over, token, node)
        else:
            self._nodes.liveness.answered(token)
        self._nodes.greet(node)

    def _several_taken(self, headers: HeaderBlock | None, payload: bytes) -> None:
        tokens = payload.decode("ascii", "replace").split(" ")
        if headers is None or headers.status != HAVE_IT or len(tokens) > _AT_ONCE:
            raise refuse(f"{payload[:60]!r} is not a list of requests", "malformed")
        for token in tokens:
            self._taken(token, self._asked.get(token), headers.text)

    def _found(self, asked: AskedRequest, token: str, node: str) -> None:
        asked.node, asked.frame = node, None
        controls, asked.controls = asked.controls, None
        for kind, block, payload in controls or ():
            self._write_control(node, token, kind, block, payload)

    def malformed(self, error: RemoteProtocolError, subject: str, sid: str, frame: bytes) -> None:
        if sid == INBOX_SID and subject.startswith(self._subjects.answers):
            error.reply_id = subject.removeprefix(self._subjects.answers)
        subscription = self._connection.subscriptions.by_sid.get(sid)
        if subscription is not None and subscription.tag is _STORED:
            if self.give_unreadable(subscription, subject, error, frame):
                return
        self._connection.events.append(Refused(error))
        if subscription is not None and error.answer_id is not None and subscription.queue is not None:
            self._answer_malformed(error, error.answer_id)

    def _answer_malformed(self, error: RemoteProtocolError, reply: str) -> None:
        with suppress(RemoteProtocolError):  # malformed, or not an address for answers
            self._subjects.asker(reply)
            self._connection.answer_malformed(error, reply)

    def judged(self, error: ServerError) -> ServerError:
        return self._nodes.judged(error)

    def not_allowed(self, error: ServerError) -> None:
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
                self.deny(token, text)
                return
            told = Message(_PUBLISH, subject)
        connection.events.append(Undelivered(told, Code.PERMISSION_DENIED, "forbidden", text))

    # -- out -------------------------------------------------------------------------------------------------------------

    def send(self, message: Message, now: float) -> str | None:
        kind = message.kind
        if kind is _REQUEST or kind is Kind.OPEN:
            return self._ask(message, now)
        if kind is _PUBLISH:
            self._connection.queue(write_published(self._connection, self._subjects, message))
        elif kind is _RESPONSE or kind is _ERROR:
            self._answer(message)
        elif kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
            self._subscribe(message)
        elif kind is _NOTIFY:
            to = None if message.extras is None else message.extras.get("to")
            names = subject_of(self._subjects, message, to)
            if message.extras is not None and "reader" in message.extras:
                names = f"{names} {self._subjects.of_reader(message.extras['reader'])}"
            self._connection.queue(write_frame(self._connection, names, message, None))
        else:
            self._send_control(message)
        return None

    def publication(self, subject: str | int, raw: bytes) -> bytes:
        connection = self._connection
        connection.queue(write_named(self._subjects.published[subject], b"", raw))
        return connection.frames.pop()

    def _ask(self, message: Message, now: float) -> str:
        kind = to = None
        if message.extras is not None:
            to = message.extras.get("to")
        if to is None:
            names = self._subjects.asked[message.subject]
        else:
            names = f"{subject_of(self._subjects, message, to)} {self._answers}"
        if message.kind is Kind.OPEN:
            facts = message.attributes
            kind = f"open {facts.get('mode', 'stream')} {facts.get('credit', 0)} {facts.get('hops', 0)}"
        token = self._tokens.next()
        frame = write_frame(self._connection, names + token, message, kind)
        self._connection.queue(frame)
        if to is None:
            self._asked[token] = AskedRequest(names, None, now, frame)
        else:
            asked = self._asked[token] = AskedRequest(names, to, now, None, self._holder(to))
            if isinstance(to, ToStore):
                asked.publication = message
            elif isinstance(to, ToEngine):
                return token
        if self._due == math.inf:
            self._look_at(now + PACE)
        return token

    def _holder(self, to: Any) -> str:
        """Return the node that handles a request, if known. For the engine, return this node, which is never checked."""
        if isinstance(to, ToUser):
            return ""
        return self.node if isinstance(to, (ToEngine, ToStore)) else str(to.node)

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
        subscribes = message.kind is Kind.SUBSCRIBE

        def change(subject: str, queue: str | None = None, **facts: Any) -> None:
            if subscribes:
                connection.subscribe(subject, queue, **facts)
            else:
                connection.unsubscribe(subject, queue)

        if "reader" in extras:
            key = extras["reader"]
            # A queue group of one, so that messages in flight at UNSUB are still delivered.
            change(self._subjects.of_reader(key), HANDLERS, tag=_STORED, name=key)
            return
        if "user" in extras:
            key = extras["user"]
            change(subjects.keyed("u", key, ">"), tag=ClusterDialect._for_user)
            change(subjects.keyed("k", key, ">"), HANDLERS, tag=ClusterDialect._to_user)
            return
        pattern = subjects.pattern(message.subject)
        if extras.get("handler"):
            change(f"{subjects.cluster}.r.{pattern}", HANDLERS, tag=ClusterDialect._to_handlers)
            if subscribes:
                self._nodes.handle(pattern)
        elif (group := extras.get("group")) is not None:
            change(f"{subjects.cluster}.p.{pattern}", group, tag=ClusterDialect._for_group, name=message.subject)
        else:
            change(f"{subjects.cluster}.p.{pattern}", tag=ClusterDialect._published, name=message.subject)

    def _send_control(self, message: Message) -> None:
        connection, kind, id = self._connection, message.kind, message.id
        own: list[tuple[str, str]] = []
        payload, word = b"", WORDS[kind]
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
        if asked is None or isinstance(asked.to, (ToEngine, ToStore)):  # the engine does not support them
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
        if when < self._due:
            self._due = when
            self._connection.events.append(Due(when))

    def tick(self, now: float) -> None:
        if self._turns:
            turn = self._turns.popleft()
            if not self._fresh.keys().isdisjoint(turn):
                self._say_taken(turn)
        if self._nodes.untold:
            self._nodes.tell()
        if now < self._due and now < self._nodes.hello_at:
            return
        if now >= self._due:
            self._due = math.inf
            self._look(now)
        if now >= self._nodes.hello_at:
            self._nodes.greet_all()
        if (due := self.due) < math.inf:  # the caller stores only the nearest time
            self._connection.events.append(Due(due))

    def _look(self, now: float) -> None:
        untaken = [token for token, asked in self._asked.items() if not asked.node and asked.at <= now - PACE]
        concerned = (*(asked.node for asked in self._asked.values()), *self._held.values())
        for node in self._nodes.look(concerned, now, everyone=bool(untaken)):
            self._gone(node)
        # A request without receipt is lost if a node has failed since it was sent, because that node may have had it.
        gone = self._nodes.liveness.last_gone
        lost = [token for token in untaken if self._asked[token].at <= now - 2 * PACE and self._asked[token].at < gone]
        for token in lost:
            del self._asked[token]
        if lost:
            self._connection.events.append(Lost(lost, "a node is gone, and no other node has confirmed this request"))
        for token, asked in self._asked.items():
            if asked.publication is not None and asked.at + asked.pause <= now < asked.to.until:
                self._send_again(token, asked, now)
        if self._asked or any(self._held.values()):
            self._look_at(now + PACE)

    def _send_again(self, token: str, asked: AskedRequest, now: float) -> None:
        assert asked.publication is not None
        asked.at, asked.pause = now, min(2 * asked.pause, LONGEST_PAUSE)
        asked.to = asked.publication.attributes["to"] = evolve(asked.to, again=True)
        self._connection.queue(write_frame(self._connection, asked.names + token, asked.publication, None))

    def _gone(self, node: str) -> None:
        taken = [token for token, asked in self._asked.items() if asked.node == node]
        given = [id for id, asker in self._held.items() if asker == node]
        for token in taken:
            del self._asked[token]
        for id in given:
            del self._held[id]
        if taken or given:
            self._connection.events.append(Lost((*taken, *given), f"the node {node} of the cluster is gone"))
        self._nodes.gone(node)


_STORED: Final = ClusterDialect.give_stored
_QUESTIONS: Final = (ClusterDialect._to_handlers, ClusterDialect._to_user)
_NOT_ANSWERED: Final = frozenset(("a", "c", "h", "p", "t"))
"""First tokens of messages to a node that are never answered, even if they are malformed."""
_NO_SOURCE: Final = ToAll()
