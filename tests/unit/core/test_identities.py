"""Who is let in: as whom, by what `authenticate` gives, and how many, by the limits of a gate."""

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from polybus import (
    BadRequest,
    Bus,
    Context,
    Disconnected,
    Handshake,
    Identity,
    Limits,
    NoHandler,
    NotFound,
    Unauthorized,
    connect,
)
from polybus._core.runtime import access
from polybus._core.runtime.access import Admissions
from tests.refusal import refused
from tests.support import eventually


class Array:
    """Has no truth value."""

    def __bool__(self) -> bool:
        raise ValueError("ambiguous")


ARRAY = Array()


@pytest.mark.parametrize("later", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(
    ("given", "told"),
    [
        *((None, False), (False, False), ("", True), (0, True), (0.0, True), (b"", True), ((), True), ({}, True)),
        *((Identity(), True), (Identity(""), True), (Identity(0, key=""), True)),
    ],
)
async def test_what_is_empty_refuses(given: Any, told: bool, later: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def asked(handshake: Any) -> Any:
        return given

    async with Bus(authenticate=asked if later else lambda handshake: given).serve("ubre+memory://empty-identity") as server:
        await refused(connect(server.url), Unauthorized, "not authenticated")
    assert any("which identifies no client" in record.getMessage() for record in caplog.records) == told


@pytest.mark.parametrize(
    ("given", "identity"),
    [("ann", "ann"), (1, 1), ({"id": 0}, {"id": 0}), (ARRAY, ARRAY), (Identity("", key="ann"), ""), (True, None)],
)
async def test_any_other_value_is_the_identity_and_true_lets_in_without_one(given: Any, identity: Any) -> None:
    bus, seen = Bus(authenticate=lambda handshake: given), list[Any]()

    @bus.handle("who")
    async def who(ctx: Context) -> None:
        seen.append(ctx.identity)

    async with bus.serve("ubre+memory://some-identity") as server, connect(server.url) as client:
        await client.request("who")
    assert seen == [identity] and type(seen[0]) is type(identity)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        (NotFound("no such user"), ""),
        (BadRequest("no token"), ""),
        *((Identity("ann", expires_at=at), "must be an aware datetime") for at in (datetime(2100, 1, 1), "tomorrow", 5)),
    ],
    ids=["an unknown user", "a malformed token", "a time without a zone", "a text", "a number"],
)
async def test_what_a_service_of_users_refuses_and_what_no_clock_can_compare_is_not_authenticated(
    outcome: Any, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    def authenticate(handshake: Any) -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async with Bus(authenticate=authenticate).serve("ubre+memory://no-identity") as server:
        await refused(connect(server.url), Unauthorized, "not authenticated")
    assert told in caplog.text
    assert "authenticate failed" not in caplog.text


@pytest.mark.parametrize("key", [7, ["a"], UUID(int=7), b"ann"])
def test_a_key_that_is_not_a_string_is_refused_with_what_to_write(key: Any) -> None:
    with pytest.raises(TypeError, match=r"^key=.* must be str, not .*; for example Identity\(key=str\(user\.id\)\)$"):
        Identity("ann", key=key)


def test_a_refused_client_certificate_is_named_among_what_the_client_brought() -> None:
    handshake = Handshake(protocol="ubre", transport="tls", tls_peer={"subject": ()}, headers={"cookie": "a=0123456789"})
    said = access._refusal(Unauthorized("cookie 0123456789 is old"), handshake)
    assert "cookie *** is old; credentials sent: cookie, a client certificate" in said


def test_the_remembered_answers_of_authorize_are_bounded() -> None:
    known: dict[str | int, bool] = {}
    for number in range(2 * access._REMEMBERED + 1):
        assert access._remember(known, number, number % 2 == 0) is (number % 2 == 0)
        assert len(known) <= access._REMEMBERED
    assert known == {2 * access._REMEMBERED: True}


async def test_users_who_are_not_here_and_handlers_that_are_not_are_told_so() -> None:
    bus, told = Bus(), list[Any]()

    @bus.handle("note")
    async def note(body: Any, ctx: Context) -> None:
        told.append((body, ctx.identity))

    async with bus:
        for asked in (bus.user("ann").request("x"), bus.user("ann").notify("x")):
            with pytest.raises(Disconnected, match="'ann' is not connected here, and this bus is not in a cluster") as raised:
                await asked
            assert not raised.value.sent
        await bus.as_("eve").notify("note", 1)
        await eventually(lambda: told)
        assert told == [(1, "eve")]
        with pytest.raises(NoHandler):
            await bus.as_("eve").notify("elsewhere")


@pytest.mark.parametrize(
    ("limits", "let_in", "open_ones", "address", "says"),
    [
        (Limits(handshakes=2), 2, 0, "10.0.0.{}:1", r"2 handshakes are under way \(Limits.handshakes\)"),
        (Limits(peers=2), 2, 2, "10.0.0.{}:1", r"2 connections are open \(Limits.peers\)"),
        (Limits(peers_per_address=2), 2, 0, "10.0.0.1:{}", r"2 connections from 10.0.0.1 \(Limits.peers_per_address\)"),
        (Limits(peers_per_address=2), 2, 0, "[2001:db8::{}]:1", r"2 connections from 2001:db8::/64 \(Limits.peers_per_"),
    ],
    ids=["handshakes", "peers", "peers of one address", "peers of one IPv6 network, where a host has any address"],
)
def test_a_limit_lets_in_as_many_as_it_says(limits: Limits, let_in: int, open_ones: int, address: str, says: str) -> None:
    admissions = Admissions(limits)
    for number in range(let_in):
        assert admissions.knock(address.format(number), max(0, open_ones - 1)) is None
    refused = admissions.knock(address.format(9), open_ones)
    assert refused is not None
    with pytest.raises(type(refused), match=says):
        raise refused
    admissions.left(address.format(0))
    assert admissions.knock(address.format(9), max(0, open_ones - 1)) is None
