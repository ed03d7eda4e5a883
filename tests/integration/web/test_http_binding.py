"""A protocol over HTTP that polybus does not know: `numbered`, each frame a request of its own, answered by its id."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import anyio
import httpx
import pytest
from attrs import frozen
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response

from polybus import Bus, BusError, Context, Unsupported, connect
from polybus.fastapi import attach
from polybus.plugins import (
    Admission,
    Closed,
    DialOptions,
    Handshake,
    Identity,
    Listening,
    ListenOptions,
    Transport,
    WebEndpoint,
    WebRoute,
)
from tests.doubles.numbered import Numbered
from tests.doubles.wires import End
from tests.refusal import refused
from tests.support import BOUND

from .support import running

ID = slice(2, 4)
"""Of a frame; an answer has that of its request."""


class NumberedEndpoint:
    """The server: one connection for all, made by the first request."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.options: ListenOptions | None = None
        self.url = path
        self.end: End | None = None
        self.answers: dict[bytes, bytes] = {}
        self.answered = anyio.Condition()

    def routes(self) -> Sequence[WebRoute]:
        return [WebRoute("", self.take, ("PUT",))]

    async def listen(self, options: ListenOptions) -> Listening:
        self.options = options
        return self

    async def aclose(self) -> None:
        self.options = None

    def _open(self, options: ListenOptions, request: Request) -> End:
        end = End(options.host, self._answer, lambda why: None)
        address = "127.0.0.1"
        assert options.gate.knock(address) is None

        def decided(outcome: Admission | BusError) -> None:
            assert isinstance(outcome, Admission)
            options.gate.opened(end, outcome)

        options.gate.admit(Handshake(protocol=options.protocol, address=address, query=dict(request.query_params)), decided)
        return end

    def _answer(self, frame: bytes) -> None:
        assert self.options is not None
        self.answers[frame[ID]] = frame
        self.options.host.spawn(self._tell)

    async def _tell(self) -> None:
        async with self.answered:
            self.answered.notify_all()

    async def take(self, scope: Any, receive: Any, send: Any) -> None:
        assert self.options is not None
        request = Request(scope, receive)
        body = await request.body()
        if self.end is None:
            self.end = self._open(self.options, request)
        self.end.deliver(body)
        async with self.answered:
            while body[ID] not in self.answers:
                await self.answered.wait()
        await Response(self.answers.pop(body[ID]))(scope, receive, send)


@frozen
class NumberedHttp:
    option_names: ClassVar[tuple[str, ...]] = ("verb",)
    verb: str

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        verb = options.get("verb", "PUT")
        if verb not in ("PUT", "POST"):
            raise ValueError(f"numbered: verb={verb!r} is not known; it is PUT or POST")
        return cls(verb)

    async def connect(self, url: str, options: DialOptions) -> Transport:
        def carry(frame: bytes) -> None:
            options.host.spawn(post, frame)

        async def post(frame: bytes) -> None:
            async with httpx.AsyncClient(trust_env=False) as http:
                answer = await http.request(self.verb, url, content=frame)
            if answer.status_code == 200:
                end.deliver(answer.content)
            else:
                end.lost(Closed(1006, f"the server answered {answer.status_code}"))

        end = End(options.host, carry, lambda why: None)
        return end

    def web_endpoint(self, path: str) -> WebEndpoint:
        return NumberedEndpoint(path)


class NumberedOverHttp(Numbered):
    http_binding = NumberedHttp


async def by_room(handshake: Handshake) -> Identity:
    return Identity(dict(handshake.query))


def make_bus() -> Bus:
    bus = Bus(authenticate=by_room)

    @bus.handle("query")
    async def query(ctx: Context) -> Any:
        return ctx.identity

    return bus


async def test_a_protocol_from_outside_is_served_and_called_over_http() -> None:
    protocol = NumberedOverHttp()
    with anyio.fail_after(BOUND):
        async with make_bus().serve("numbered+http://127.0.0.1:0/app", protocol=protocol) as listener:
            assert listener.url.startswith("numbered+http://127.0.0.1:")
            async with connect(f"{listener.url}?verb=PUT&room=7", protocol=protocol) as bus:
                assert await bus.request("query") == {"room": "7"}  # options of the binding are not for the server
            async with connect(f"{listener.url}?verb=POST", protocol=protocol) as bus:
                with pytest.raises(BusError, match="405"):
                    await bus.request("query")


async def test_it_is_served_in_an_application_too() -> None:
    app, protocol = FastAPI(), NumberedOverHttp()
    attach(app, make_bus(), "/bus", protocol=protocol)
    with anyio.fail_after(BOUND):
        async with running(app) as uvicorn:
            async with connect(f"numbered+http://127.0.0.1:{uvicorn.port}/bus?room=7", protocol=protocol) as bus:
                assert await bus.request("query") == {"room": "7"}


async def test_a_wrong_option_of_a_binding_is_refused_before_anything_is_connected() -> None:
    with pytest.raises(ValueError, match="verb='GET' is not known"):
        connect("numbered+http://127.0.0.1:1?verb=GET", protocol=NumberedOverHttp())


async def test_a_protocol_without_a_binding_has_no_form_over_http() -> None:
    await refused(connect("numbered+http://127.0.0.1:1", protocol=Numbered()), Unsupported, match="no form over HTTP")
    await refused(Bus().serve("numbered+http://127.0.0.1:0", protocol=Numbered()), Unsupported, match="no form over HTTP")
