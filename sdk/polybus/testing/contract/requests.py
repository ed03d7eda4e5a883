"""Contract tests for requests and replies, and for errors sent to the caller."""

from __future__ import annotations

import dataclasses
import math
from importlib.util import find_spec
from typing import Any, NamedTuple, TypedDict

import anyio
import attrs
import msgspec
import pytest

from ... import (
    BadReply,
    BadRequest,
    Bus,
    Code,
    Context,
    EncodeError,
    Message,
    NoHandler,
    Reply,
    TooLarge,
    errors,
)
from ...events import HandlerFailed
from ._base import Contract, echo, needs, next_event

_PLAIN: tuple[Any, ...] = (None, True, False, 0, -1, 2**53, 1.5, -1e-300, "", "text", [], {})
BODIES: tuple[Any, ...] = (
    *_PLAIN,
    'quotes " and \\ backslashes / and \u2028 lines',
    "grüße \u4f60\u597d \U0001f600 \x00 \x7f",
    [1, [2, [3, [None]]]],
    {"a": {"b": {"c": [True, None, "x"]}}, "": 0, "\U0001f600": "key"},
    [{"id": number, "name": str(number)} for number in range(200)],
)
ROOM = 2048
"""Number of bytes reserved for ids, subject and envelope in a maximum-size frame."""


@attrs.frozen
class AttrsUser:
    id: int
    name: str


class TupleUser(NamedTuple):
    id: int
    name: str


class DictUser(TypedDict):
    id: int
    name: str


def _users() -> list[tuple[Any, Any]]:
    fields: Any = [("id", int), ("name", str)]
    data, struct = dataclasses.make_dataclass("DataUser", fields, frozen=True), msgspec.defstruct("StructUser", fields)
    kinds: list[Any] = [AttrsUser, data, struct, TupleUser, DictUser]
    if find_spec("pydantic") is not None:
        from pydantic import create_model

        kinds.append(create_model("ModelUser", id=(int, ...), name=(str, ...)))
    several = list[AttrsUser], [AttrsUser(7, "Ann"), AttrsUser(8, "Bob")]
    return [*((kind, kind(id=7, name="Ann")) for kind in kinds), several]


class RequestContract(Contract):
    async def test_a_body_survives_the_round_trip(self) -> None:
        async with self.handling(echo) as (_, client, subject):
            for body in BODIES:
                assert await client.request(subject, body) == body

    async def test_a_body_just_below_the_limit_arrives(self) -> None:
        async with self.handling(echo) as (bus, client, subject):
            large = "x" * (bus.limits.message - ROOM)
            assert await client.request(subject, large) == large

    async def test_a_request_above_the_limit_raises_too_large_and_keeps_the_link(self) -> None:
        async with self.handling(echo) as (bus, client, subject):
            with pytest.raises(TooLarge, match=str(bus.limits.message)):
                await client.request(subject, "x" * bus.limits.message)
            assert await client.request(subject, "small") == "small"
            assert client.stats().pending == 0

    async def test_an_answer_above_the_limit_raises_too_large_and_keeps_the_link(self) -> None:
        async def grow(body: int) -> str:
            return "x" * body

        async with self.handling(grow) as (bus, client, subject):
            with pytest.raises(TooLarge):
                await client.request(subject, bus.limits.message)
            assert await client.request(subject, 3) == "xxx"

    async def test_typed_handlers_and_replies_have_the_requested_type(self) -> None:
        bus, users = Bus(), _users()
        got: list[Any] = []

        for number, (kind, _) in enumerate(users):

            async def handler(body: Any) -> Any:
                got.append(body)
                return body

            handler.__annotations__["body"] = kind
            bus.handle(self.subject(f"user.{number}"))(handler)
        async with self.joined(bus) as client:
            for number, (kind, value) in enumerate(users):
                reply: Reply[Any] = client.request(self.subject(f"user.{number}"), value, returns=kind)
                answer = await reply
                assert got[-1] == answer == value
                assert type(got[-1]) is type(answer) is type(value)
                assert await reply is answer

    async def test_a_reply_of_the_wrong_type_raises_bad_reply_with_the_path(self) -> None:
        async def user() -> Any:
            return [{"id": 7, "name": "Ann"}, {"id": "seven", "name": "Bob"}]

        async with self.handling(user) as (_, client, subject):
            reply = client.request(subject, returns=list[AttrsUser])
            for _ in range(2):
                with pytest.raises(BadReply, match=r"\$\[1\]\.id"):
                    await reply

    async def test_a_request_of_the_wrong_type_raises_bad_request_with_the_path(self) -> None:
        called: list[Any] = []

        async def user(body: AttrsUser) -> None:
            called.append(body)

        async with self.handling(user) as (_, client, subject):
            with pytest.raises(BadRequest, match=r"\$\.id"):
                await client.request(subject, {"id": "seven", "name": "Ann"})
        assert not called

    async def test_a_body_that_cannot_be_encoded_raises_encode_error_with_the_path(self) -> None:
        bus, subject = Bus(), self.subject("echo")
        async with self.joined(bus) as client:
            with pytest.raises(EncodeError) as caught:
                _ = client.request(subject, {"items": [1, {"price": object()}]})
            assert caught.value.path == "$.items[1].price"
            assert client.stats().pending == 0

    async def test_nan_arrives_or_raises_encode_error_but_never_becomes_null(self) -> None:
        async with self.handling(echo) as (_, client, subject):
            try:
                reply = client.request(subject, {"prices": [1.0, float("nan")]})
            except EncodeError as error:
                assert error.path == "$.prices[1]"  # the protocol cannot carry it
            else:
                prices = (await reply)["prices"]
                assert prices[0] == 1.0
                assert math.isnan(prices[1])
            assert client.stats().pending == 0

    async def test_a_request_without_a_handler_fails_immediately(self) -> None:
        bus = Bus()
        async with self.joined(bus) as client:
            with pytest.raises(NoHandler):
                await client.request(self.subject("nobody"), timeout=1000)

    async def test_a_thousand_requests_in_flight_each_get_their_own_answer(self) -> None:
        async def square(body: int) -> int:
            if body % 3:
                await anyio.lowlevel.checkpoint()
            return body * body

        async with self.handling(square) as (bus, client, subject):
            replies = [client.request(subject, number) for number in range(1000)]
            assert [await reply for reply in reversed(replies)] == [n * n for n in reversed(range(1000))]
            assert client.stats().pending == 0
            assert bus.stats().running == bus.stats().waiting == 0

    async def test_both_sides_can_send_requests_at_the_same_time(self) -> None:
        bus, client = Bus(), Bus()
        there, here = self.subject("there"), self.subject("here")

        @bus.handle(there)
        async def ask_back(body: int, ctx: Context) -> Any:
            assert ctx.peer is not None
            return [body, await ctx.peer.request(here, body + 1)]

        @client.handle(here)
        async def answer(body: int) -> int:
            return body * 10

        async with self.joined(bus, client):
            replies = [client.request(there, n) for n in range(50)]
            assert [await reply for reply in replies] == [[n, (n + 1) * 10] for n in range(50)]

    @needs("headers")
    async def test_headers_arrive(self) -> None:
        async def headers(ctx: Context) -> Any:
            return ctx.message.headers

        async with self.handling(headers) as (_, client, subject):
            sent = {"x-trace": "äöü 1", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
            assert await client.request(subject, headers=sent) == sent

    async def test_answer_headers_arrive_if_supported_and_are_otherwise_dropped(self) -> None:
        async def tagged(body: int, ctx: Context) -> int:
            if body:
                ctx.answer_headers["x-version"] = str(body)
            return body

        can = self.adapter.session("client").capabilities
        carried = can.headers and can.answer_headers
        async with self.handling(tagged) as (_, client, subject):
            whole = await client.request(subject, 7, returns=Message[int])
            assert whole.body == 7
            assert (whole.headers or {}) == ({"x-version": "7"} if carried else {})
            reply = client.request(subject, 0)
            assert await reply == 0
            assert reply.message is not None
            assert not reply.message.headers

    @needs("notifications")
    async def test_a_notification_reaches_the_handler_and_has_no_answer(self) -> None:
        told: list[Any] = []
        heard = anyio.Event()

        async def tell(body: Any) -> str:
            told.append(body)
            heard.set()
            return "nobody reads this"

        async with self.handling(tell) as (_, client, subject):
            await client.notify(subject, {"n": 1})
            await heard.wait()
            assert told == [{"n": 1}]
            await client.notify(self.subject("nobody"), 1)  # has no outcome
            assert client.stats().pending == 0


CLASSES: dict[tuple[Code, str | None], type[errors.RequestError]] = {
    (Code.CANCELLED, None): errors.RemoteError,
    (Code.UNKNOWN, None): errors.RemoteError,
    (Code.INVALID_ARGUMENT, "odd"): errors.BadRequest,
    (Code.NOT_FOUND, "no_such_user"): errors.NotFound,
    (Code.ALREADY_EXISTS, None): errors.Conflict,
    (Code.PERMISSION_DENIED, None): errors.Forbidden,
    (Code.UNAUTHENTICATED, None): errors.Unauthorized,
    (Code.RESOURCE_EXHAUSTED, "quota"): errors.TooManyRequests,
    (Code.RESOURCE_EXHAUSTED, "too_large"): errors.TooLarge,
    (Code.FAILED_PRECONDITION, None): errors.Conflict,
    (Code.ABORTED, None): errors.Conflict,
    (Code.OUT_OF_RANGE, None): errors.RemoteError,
    (Code.UNIMPLEMENTED, None): errors.NoHandler,
    (Code.INTERNAL, None): errors.RemoteError,
    (Code.UNAVAILABLE, None): errors.Unavailable,
    (Code.DATA_LOSS, "bit_rot"): errors.RemoteError,
}


class FailureContract(Contract):
    async def test_an_unexpected_exception_is_internal_and_only_its_id_is_sent(self, caplog: pytest.LogCaptureFixture) -> None:
        async def fail() -> None:
            raise ValueError("the password is hunter2")

        async with self.handling(fail) as (bus, client, subject):
            events = bus.events()
            with pytest.raises(errors.RemoteError) as caught:
                await client.request(subject, timeout=1000)
            event = await next_event(events, HandlerFailed)
        error = caught.value
        assert error.code is Code.INTERNAL
        assert error.subject == subject
        assert "hunter2" not in str(error) + repr(error) + repr(error.detail)
        assert "ValueError" not in str(error)
        assert event.error_id
        assert event.error_id in str(error)
        assert event.error_id in caplog.text
        assert "hunter2" in caplog.text
        assert bus.stats().failed == 1

    async def test_a_request_error_keeps_class_code_text_reason_and_detail(self) -> None:
        detail = {"field": "name", "values": [1, None, "ü"]}

        async def fail(body: Any) -> None:
            raise errors.RequestError(Code(body[0]), "not this time", reason=body[1], detail=detail)

        async with self.handling(fail) as (bus, client, subject):
            for (code, reason), kind in CLASSES.items():
                with pytest.raises(errors.RequestError) as caught:
                    await client.request(subject, [int(code), reason])
                error = caught.value
                assert type(error) is kind
                assert (error.code, error.text, error.reason, error.detail) == (code, "not this time", reason, detail)
                assert error.subject == subject
        assert bus.stats().failed == 0

    async def test_a_deadline_error_from_the_peer_is_remote(self) -> None:
        text = "the database did not answer"

        async def fail() -> None:
            raise errors.RequestError(Code.DEADLINE_EXCEEDED, text, reason="late", detail={"seconds": 3})

        async with self.handling(fail) as (_, client, subject):
            with pytest.raises(errors.DeadlineExceeded) as caught:
                await client.request(subject)
            error = caught.value
            assert (error.where, error.subject) == ("remote", subject)
            assert (error.text, error.reason, error.detail) == (text, "late", {"seconds": 3})
            assert text in str(error)

    async def test_an_error_from_another_peer_is_internal_unless_relayed(self) -> None:
        bus, client = Bus(), Bus()
        outer, inner = self.subject("outer"), self.subject("inner")

        @client.handle(inner)
        async def fail() -> None:
            raise errors.NotFound("there is no user 7", reason="no_user")

        @bus.handle(outer)
        async def ask(body: bool, ctx: Context) -> None:
            assert ctx.peer is not None
            try:
                await ctx.peer.request(inner)
            except errors.RequestError as error:
                if body:
                    raise error.relay() from None
                raise

        async with self.joined(bus, client):
            with pytest.raises(errors.RequestError) as caught:
                await client.request(outer, False)
            assert type(caught.value) is errors.RemoteError
            assert caught.value.code is Code.INTERNAL
            assert "user 7" not in str(caught.value)
            with pytest.raises(errors.NotFound, match="there is no user 7") as relayed:
                await client.request(outer, True)
            assert relayed.value.reason == "no_user"

    async def test_an_answer_that_cannot_be_encoded_is_internal(self) -> None:
        async def odd() -> Any:
            return {"value": object()}

        async with self.handling(odd) as (_, client, subject):
            with pytest.raises(errors.RemoteError) as caught:
                await client.request(subject, timeout=1000)
            assert caught.value.code is Code.INTERNAL

    async def test_an_error_detail_that_cannot_be_encoded_is_omitted(self) -> None:
        async def odd() -> None:
            raise errors.Conflict("twice", detail=object())

        async with self.handling(odd) as (_, client, subject):
            with pytest.raises(errors.Conflict, match="twice") as caught:
                await client.request(subject, timeout=1000)
            assert caught.value.detail is None
