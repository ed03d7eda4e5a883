"""Target for the dialect among the nodes of a cluster: operations of the engine, or of a lying member.

A session has sent and received requests and opens. For any further input it never raises; it writes one operation that the
engine accepts, with a line of permitted length; and each of its requests is still pending, or has ended.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any, Final

from attrs import frozen

from polybus.body import JSON
from polybus.limits import Limits
from polybus.message import Kind, Message
from polybus.plugins import Lost, Refused, ToClient, ToNode, ToUser
from polybus.protocols import Nats
from tests.doubles.driven import Driven

__all__ = ["ClusterTarget"]

_LINE: Final = 4096
"""Default limit of servers for an operation's first line, in bytes."""
_HELLO: Final = json.dumps({"hello": "other1", "bus": "b2", "name": "host:1"}).encode()
_WORDS: Final = {
    b"PUB": (2, 3), b"HPUB": (3, 4), b"SUB": (2, 3), b"UNSUB": (1,), b"PING": (0,), b"PONG": (0,), b"CONNECT": (1,),
}  # fmt: skip
_ENDS: Final = (Kind.RESPONSE, Kind.ERROR, Kind.END)


def operation(subject: str, sid: str, payload: bytes = b"", reply: str = "", block: str | None = None) -> bytes:
    """Delivery of the engine."""
    names = f"{subject} {sid} {reply}".strip()
    if block is None:
        return f"MSG {names} {len(payload)}\r\n".encode() + payload + b"\r\n"
    head = f"NATS/1.0{block}\r\n\r\n".encode()
    return f"HMSG {names} {len(head)} {len(head) + len(payload)}\r\n".encode() + head + payload + b"\r\n"


class _Scene:
    """A session with requests in progress; always the same one."""

    def __init__(self, adapter: Nats, let_in: Iterable[bytes]) -> None:
        self.session: Driven = Driven(adapter.session("client", Limits(), random.Random(7)))
        self.session.start(0.0)
        for frame in let_in:
            self.session.receive(frame, 1.0)
        for extras in ({"handler": True}, {"group": "g"}, None):
            self.session.send(Message(Kind.SUBSCRIBE, "user.*", attributes=extras), 1.0)
        self.session.send(Message(Kind.SUBSCRIBE, "", attributes={"user": "ann"}), 1.0)
        self.session.receive(operation("shop.a", "2", _HELLO), 1.0)
        places: tuple[Any, ...] = (None, ToUser("bob"), ToNode("other1"), ToClient("other1", "id7"))
        self.tokens = [self._ask(Kind.REQUEST, to) for to in places]
        self.tokens.append(self._ask(Kind.OPEN, None, mode="channel", credit=8, hops=0))
        self.written = self.session.frames_to_send()
        subject = next(frame.split()[1] for frame in self.written if frame.startswith(b"SUB shop.n."))
        self.mine = subject.decode().removesuffix(">")
        self.session.receive(operation("shop.r.user.get", "3", b"7", "shop.n.other1.a.t1"), 1.0)
        self.session.tick(1.0)
        self.events: list[Any] = self.session.events()

    def _ask(self, kind: Kind, to: Any, **facts: Any) -> str:
        extras = facts if to is None else {**facts, "to": to}
        token: str | None = self.session.send(Message(kind, "user.get", None, b"7", JSON, attributes=extras or None), 1.0)
        assert token is not None
        return token

    def take(self) -> None:
        """Discard recorded events."""
        self.events += self.session.events()
        self.written += self.session.frames_to_send()


@frozen
class ClusterTarget:
    """As `fuzz.targets.Target`.

    Attributes:
        before: Earlier input of the session.
    """

    before: tuple[bytes, ...]

    @property
    def adapters(self) -> tuple[Nats, ...]:
        """The only variant."""
        return (Nats(cluster="shop", member="b1"),)

    def __call__(self, data: bytes) -> None:
        """Try one input: an operation, or several.

        Raises:
            Exception: The dialect has a fault.
        """
        (adapter,) = self.adapters
        scene = _Scene(adapter, self.before)
        session = scene.session
        for frame in adapter.framing.cutter(Limits(), "tcp").feed(data) or [data]:
            session.receive(bytes(frame), 1.5)
            scene.take()
        for now in range(2, 40):
            session.receive(b"PING\r\n", float(now))
            session.tick(float(now))
            scene.take()
        self._check(adapter, scene)
        session.connection_lost("the end")

    def _check(self, adapter: Nats, scene: _Scene) -> None:
        for frame in scene.written:
            line, _, _ = frame.partition(b"\r\n")
            verb, *words = line.split(b" ", 1 if line.startswith(b"CONNECT") else -1)
            assert len(words) in _WORDS[verb], line
            assert all(words) and len(line) <= _LINE, line[:100]
            assert [bytes(part) for part in adapter.framing.cutter(Limits(), "tcp").feed(frame)] == [frame]
        ended = set[Any]()
        for event in scene.events:
            if isinstance(event, Message) and event.kind in _ENDS:
                ended.add(event.id)
            elif isinstance(event, Lost):
                ended.update(event.ids)
            elif isinstance(event, Refused):
                ended.add(event.error.reply_id)
        dialect: Any = scene.session._dialect
        assert {*scene.tokens} <= ended | dialect._asked.keys()

    def seeds(self) -> list[bytes]:
        """Initial operations, including lies of a member."""
        scene = _Scene(self.adapters[0], self.before)
        mine, first, of_user, of_node, _, opened = scene.mine, *scene.tokens
        answers = f"{mine}a."
        other = "shop.n.other1.a.t2"
        probes = operation(f"{answers}zz", "1", b"", "", " 102 other1")
        return [
            *self.before,
            operation("shop.a", "2", _HELLO.replace(b"other1", b"other2"), "shop.n.other2.h"),
            operation("shop.a", "2", json.dumps({"hello": "x" * 5000, "bus": ["b"], "name": {}}).encode(), "shop.n.x.h"),
            operation("shop.a", "2", b'{"bye":"other1"}'),
            operation(f"{mine}h", "1", _HELLO, "shop.n.other1.h"),
            operation(f"{mine}y", "1", b"", other),
            operation("shop.r.user.get", "3", b'{"id":7}', other, "\r\nPolybus-Ttl: 300\r\nPolybus-User: eve\r\nA: b"),
            operation("shop.r.user.get", "3", b"7", "shop.n." + "x" * 4000 + ".a.t"),
            operation("shop.r.user.get", "3", b"7", other, "\r\nPolybus-Kind: open channel 8 0"),
            operation("shop.r.user.get", "3", b"7", other, "\r\nPolybus-Kind: open3 x"),
            operation("shop.p.user.get", "4", b"1", "shop.n.other1.p"),
            operation("shop.p.user.get", "5", b"1", f"{mine}p"),
            operation("shop.u.ann.news", "6", b"1", "shop.n.other1.p"),
            operation("shop.k.ann.confirm", "7", b"1", other),
            operation(f"{mine}d.id7.news", "1", b"1", "", "\r\nPolybus-Kind: publish"),
            operation(f"{mine}r.clients", "1", b"", other),
            operation(f"{mine}zz.new", "1", b"", other),
            operation(f"{mine}c.other1.t1", "1", b"", "", "\r\nPolybus-Kind: cancel"),
            operation(f"{mine}c.other1.t1", "1", b"1", "", "\r\nPolybus-Kind: item"),
            operation(f"{mine}c.eve.t1", "1", b"1", "", "\r\nPolybus-Kind: credit 9"),
            operation(answers + first, "1", b"8"),
            operation(answers + first, "1", b"", "", " 102 other1"),
            operation(answers + first, "1", b"", "", " 102 nobody") + operation(answers + first, "1", b"8"),
            operation(answers + first, "1", b"", "", " 102 a b.c *") + probes,
            operation(answers + first, "1", b"", "", "\r\nPolybus-Kind: undelivered\r\nNats-Service-Error-Code: 8"),
            operation(answers + first, "1", b"", "", "\r\nNats-Service-Error: no\r\nNats-Service-Error-Code: 5"),
            operation(answers + of_user, "1", b"", "", " 503"),
            operation(answers + of_node, "1", b"", "", " 503"),
            operation(answers + opened, "1", b"1", "", "\r\nPolybus-Kind: item"),
            operation(answers + opened, "1", b"", "", "\r\nPolybus-Kind: end"),
            operation(answers + opened, "1", b"", "", "\r\nPolybus-Kind: item 2 of 3"),
            operation(answers + "7" + "f" * 8, "1", b"8"),
            b"-ERR 'Permissions Violation for Publish to \"shop.r.user.get\"'\r\n",
        ]
