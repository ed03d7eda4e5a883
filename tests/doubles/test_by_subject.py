"""Answers found by the subject that the question named."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from polybus import Bus, Code, Kind, Message, Unsupported, connect
from polybus.plugins import Refused, Transport
from tests.support import BOUND

from .by_subject import BUS, BySubject
from .common import dump, load
from .wires import Dial, End

pytestmark = pytest.mark.anyio


class BarePeer:
    """A server that knows the wire and nothing of polybus. `silent`: it does not even say that it serves nothing."""

    def __init__(self, *, silent: bool) -> None:
        self.silent = silent
        self.heard: list[Any] = []

    def dial(self) -> Dial:
        return Dial(self._connect)

    def _connect(self, options: Any) -> Transport:
        self.end = End(options.host, self._take, lambda why: None)
        return self.end

    def _take(self, frame: bytes) -> None:
        document = load(frame)
        self.heard.append(document)
        if "replyTo" not in document:
            return
        if document["to"] == "echo":
            self.end.deliver(dump({"to": document["replyTo"], "value": document.get("value")}))
        elif not self.silent:
            facts = {"code": int(Code.UNIMPLEMENTED), "text": "no such service"}
            self.end.deliver(dump({"to": document["replyTo"], "error": facts}))


@pytest.mark.parametrize("silent", [False, True])
async def test_a_bare_peer_answers_requests_and_gets_no_extension(silent: bool) -> None:
    with anyio.fail_after(BOUND):
        peer = BarePeer(silent=silent)
        async with connect(peer.dial(), protocol=BySubject()) as bus:
            assert await bus.request("echo", 1) == 1
            with pytest.raises(Unsupported):
                await bus.stream("numbers").__aenter__()
            with pytest.raises(Unsupported):
                await bus.subscribe("news.*").__aenter__()
            async with bus.subscribe("news.today") as news:
                peer.end.deliver(dump({"to": "news.today", "value": 7}))
                assert (await anext(news)).body == 7
        commands = [(document.get("command"), document.get("subject")) for document in peer.heard if document["to"] == BUS]
        assert commands == [("subscribe", "news.today"), ("unsubscribe", "news.today")]


async def test_a_message_without_a_reply_subject_reaches_who_listens_and_who_handles() -> None:
    server, heard, both = Bus(), list[str](), anyio.Event()

    def note(who: str) -> None:
        heard.append(who)
        if len(heard) == 2:
            both.set()

    @server.on("order.*")
    async def on_order(body: Any) -> None:
        note(f"on {body}")

    @server.handle("order.new")
    async def new_order(body: Any) -> str:
        note(f"handle {body}")
        return "nobody reads this"

    with anyio.fail_after(BOUND):
        async with server.serve("by_subject+memory://both", protocol=BySubject()):
            async with connect("by_subject+memory://both", protocol=BySubject()) as bus:
                await bus.publish("order.new", 1)
                await both.wait()
    assert sorted(heard) == ["handle 1", "on 1"]


def test_a_guessed_reply_subject_is_refused_and_a_late_answer_is_not() -> None:
    asker, other = BySubject().session("client"), BySubject().session("client")
    key = asker.send(Message(Kind.REQUEST, "a"), 0.0)
    guessed = other.send(Message(Kind.REQUEST, "a"), 0.0)
    assert key is not None
    following = key[:-1] + "2"
    asker.start(0.0)
    asker.events()
    for subject in (guessed, following, "reply.", key + "x"):
        asker.receive(dump({"to": subject, "value": 1}), 0.0)
        (event,) = asker.events()
        assert isinstance(event, Refused), subject
    asker.forget(key, 0.0)
    asker.receive(dump({"to": key, "value": 1}), 0.0)
    (answer,) = asker.events()
    assert isinstance(answer, Message)
    assert answer.id == key
