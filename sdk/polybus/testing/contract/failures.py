"""Errors that reach the asker."""

from __future__ import annotations

from typing import Any

import pytest

from ... import Bus, Code, Context, errors
from ...events import HandlerFailed
from ._base import Contract, next_event

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
    """Errors over the wire."""

    async def test_an_unexpected_exception_is_internal_with_an_id_and_nothing_of_its_text(self) -> None:
        async def fail() -> None:
            raise ValueError("the password is hunter2")

        async with self.handling(fail) as (_, client, subject):
            with pytest.raises(errors.RemoteError) as caught:
                await client.request(subject, timeout=1000)
        error = caught.value
        assert error.code is Code.INTERNAL
        assert error.subject == subject
        assert "hunter2" not in str(error) + repr(error) + repr(error.detail)
        assert "ValueError" not in str(error)

    async def test_the_id_that_the_asker_sees_is_in_the_log(self, caplog: pytest.LogCaptureFixture) -> None:
        async def fail() -> None:
            raise ValueError("for the log only")

        async with self.handling(fail) as (bus, client, subject):
            events = bus.events()
            with pytest.raises(errors.RemoteError) as caught:
                await client.request(subject)
            event = await next_event(events, HandlerFailed)
        assert event.error_id
        assert event.error_id in str(caught.value)
        assert event.error_id in caplog.text
        assert "for the log only" in caplog.text
        assert bus.stats().failed == 1

    async def test_with_debug_the_text_is_sent(self) -> None:
        async def fail() -> None:
            raise ValueError("quite helpful")

        async with self.handling(fail, Bus(debug=True)) as (_, client, subject):
            with pytest.raises(errors.RemoteError, match="ValueError: quite helpful"):
                await client.request(subject)

    async def test_a_chosen_error_keeps_class_code_text_reason_and_detail(self) -> None:
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

    async def test_a_deadline_that_the_peer_reports_is_a_remote_one(self) -> None:
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

    async def test_an_error_received_from_elsewhere_does_not_leak_upward_unless_relayed(self) -> None:
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

    async def test_an_answer_that_cannot_be_written_is_internal(self) -> None:
        async def odd() -> Any:
            return {"value": object()}

        async with self.handling(odd) as (_, client, subject):
            with pytest.raises(errors.RemoteError) as caught:
                await client.request(subject, timeout=1000)
            assert caught.value.code is Code.INTERNAL

    async def test_a_detail_that_cannot_be_written_is_left_out(self) -> None:
        async def odd() -> None:
            raise errors.Conflict("twice", detail=object())

        async with self.handling(odd) as (_, client, subject):
            with pytest.raises(errors.Conflict, match="twice") as caught:
                await client.request(subject, timeout=1000)
            assert caught.value.detail is None
