"""`polybus request`, `stream`, `publish` and `subscribe`."""

from __future__ import annotations

import math
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from typing import Annotated, Any

import anyio
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from .. import BadRequest, Bus, Disconnected, Message, Unsupported
from ..events import BusEvent, LinkDown, LinkUp
from ..plugins import ProtocolFeatures
from ..plugins.extensions import core_of
from ..plugins.tools import in_one_line
from ..subjects import literal_wildcards
from .options import (
    FOR_EVER,
    AnyUrl,
    Body,
    Header,
    Json,
    Tls,
    Url,
    Wait,
    argument,
    cluster_of,
    connecting,
    connects,
    duration,
    hasty_bus,
    json_line,
    option,
    parse_body,
    parse_subject,
)
from .problems import PeerError, UsageError, say, unwrapped
from .process import ending

_WITHOUT_HANDSHAKE = ("tcp", "unix")
"""Transports without a handshake. An open connection does not prove that it leads to a bus."""

SubjectArgument = Annotated[str, argument("SUBJECT", "Subject, for example user.get.")]


@connects
def request(
    url: AnyUrl,
    subject: SubjectArgument,
    body: Body = None,
    timeout: Annotated[float, duration("Seconds to wait for the answer.")] = 30.0,
    user: Annotated[str, option("KEY", "Send the request to this user, who is connected to any worker of the cluster.")] = "",
    as_json: Json = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Send a request and print the answer as JSON."""
    name, value = parse_subject(url, subject), parse_body(body)
    _check_user(url, user)

    async def ask() -> Any:
        async with connecting(url, header, tls, wait, timeout) as bus:
            with _body_may_be_missing(body):
                if not user:
                    return await bus.request(name, value, timeout=timeout)
                try:
                    return await bus.user(user).request(name, value, timeout=timeout)
                except Disconnected as error:
                    if error.sent:
                        raise
                    raise _not_there(user) from None

    answer = anyio.run(ask)
    coloured = _has_colours(as_json)
    _print_value(answer, coloured=coloured, pretty=coloured)


@connects
def stream(
    url: Url,
    subject: SubjectArgument,
    body: Body = None,
    count: Annotated[int, option("N", "Stop after this many items; 0 means no limit.", min=0)] = 0,
    timeout: Annotated[float, duration("Seconds for the whole stream; 0 means no limit.")] = 0.0,
    as_json: Json = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Request a stream and print each item as a line of JSON."""
    name, value = parse_subject(url, subject), parse_body(body)
    show = partial(_print_value, coloured=_has_colours(as_json))

    async def read() -> None:
        async with connecting(url, header, tls, wait, timeout) as bus, anyio.create_task_group() as group:
            group.start_soon(_until_signal, group.cancel_scope)
            with _body_may_be_missing(body):
                await _print(bus.stream(name, value, timeout=timeout or None), count, show)
            group.cancel_scope.cancel()

    unwrapped(lambda: anyio.run(read))


@connects
def publish(
    url: AnyUrl,
    subject: SubjectArgument,
    body: Body = None,
    timeout: Annotated[
        float,
        duration(
            "Seconds for each step: to connect, queue and store, and for a first answer if the protocol has no handshake; "
            "0 means no limit."
        ),
    ] = 5.0,
    user: Annotated[str, option("KEY", "Publish only to this user, who is connected to any worker of the cluster.")] = "",
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Publish a message.

    Subscribers do not acknowledge it, and only a NATS server reports that it refused the message: other servers log this. Exits
    with status 1 if a NATS server refuses the message, or should store it and does not.
    """
    name, value = parse_subject(url, subject), parse_body(body)
    _check_user(url, user)

    async def tell() -> None:
        async with connecting(url, header, tls, wait, timeout) as bus:
            if user:
                if not await bus.user(user).online():
                    raise _not_there(user)
                await bus.user(user).publish(name, value)
                return
            if bus.cluster is not None or ProtocolFeatures.of(core_of(bus.peers[0]).link.adapter).keeps:
                from ..cluster.durable.administration import publish_stored  # an eighth of a second, only for NATS

                await publish_stored(bus, name, value, timeout or FOR_EVER)
                return
            with _meant_for_peers(bus):
                await bus.publish(name, value, timeout=timeout or FOR_EVER)
            await _sign_of_life(bus, timeout)

    anyio.run(tell)


@connects
def subscribe(
    url: AnyUrl,
    pattern: Annotated[
        str, argument("PATTERN", "Subject pattern, for example 'news.*': * matches one token, > matches the rest.")
    ],
    as_json: Json = False,
    count: Annotated[int, option("N", "Stop after this many; 0 means no limit.", min=0)] = 0,
    timeout: Annotated[float, duration("Seconds for a first answer if the protocol has no handshake; 0 means no limit.")] = 5.0,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Print publications as lines of JSON."""
    name = parse_subject(url, pattern)
    if text := literal_wildcards(name):
        say(text)
    show = partial(_show, coloured=_has_colours(as_json))

    async def listen() -> None:
        bus = hasty_bus(timeout, cluster_of(url, wait, tls))
        events = bus.events()  # before connecting, because the link may go down at once
        async with connecting(url, header, tls, wait, bus=bus), anyio.create_task_group() as group:
            group.start_soon(_until_signal, group.cancel_scope)
            group.start_soon(_watch, bus, events, timeout)
            if sys.stderr.isatty():
                say(f"listening to {pattern!r} at {bus.peers[0].address}, until Ctrl-C")
            with _meant_for_peers(bus):
                await _print(bus.subscribe(name), count, show)
            group.cancel_scope.cancel()

    unwrapped(lambda: anyio.run(listen))


def _check_user(url: str, user: str) -> None:
    if user and cluster_of(url) is None:
        raise UsageError("--user requires a cluster: use nats+tcp://host/name, or auto to use POLYBUS_CLUSTER")


def _not_there(user: str) -> PeerError:
    return PeerError(
        f"the user {user!r} is not connected to any node of the cluster: is this the key that authenticate returned?"
    )


@contextmanager
def _body_may_be_missing(body: str | None) -> Iterator[None]:
    """Mention in a `PeerError` that no BODY was given if the server rejects the body."""
    try:
        yield
    except BadRequest as error:
        if body is not None or not (error.text or "").startswith("invalid body"):
            raise
        raise PeerError(f"{error}; no BODY was given, for example '{{\"id\": 7}}' or '\"Ann\"'") from None


@contextmanager
def _meant_for_peers(bus: Bus) -> Iterator[None]:
    """Raise a `PeerError` with advice if the peer does not seem to support publications."""
    try:
        yield
    except Unsupported as error:
        peer = next(iter(bus.peers), None)
        if peer is None or repr(peer) not in str(error):
            raise
        text = str(error).replace(repr(peer), peer.address)
        raise PeerError(f"{text}; or it uses a different protocol: check with polybus doctor URL") from None


async def _sign_of_life(bus: Bus, timeout: float) -> None:
    """Request the identity of a peer without a handshake once a second, because publications are not answered."""
    if not timeout or not _may_be_mute(bus):
        return
    peer = bus.peers[0]
    with anyio.move_on_after(timeout):
        for _ in range(math.ceil(timeout)):
            if await peer.extended() or bus.stats().received:
                return
    raise _silent(bus, timeout)


def _may_be_mute(bus: Bus) -> bool:
    if bus.cluster is not None:  # NATS has a handshake
        return False
    peer = bus.peers[0]
    return peer.transport in _WITHOUT_HANDSHAKE and core_of(peer).speaks_extensions is None


def _silent(bus: Bus, timeout: float) -> PeerError:
    return PeerError(
        f"{bus.peers[0].address} accepts the connection but has sent nothing for {timeout:g} s: "
        "does it use this protocol? Run polybus doctor URL for details, or skip this check with --timeout 0"
    )


async def _print(source: AbstractAsyncContextManager[Any], count: int, show: Callable[[Any], None]) -> None:
    async with source as items:
        async for item in items:
            show(item)
            count -= 1
            if count == 0:
                return


async def _watch(bus: Bus, events: AsyncIterator[BusEvent], timeout: float) -> None:
    """Report when the link is down, because publications are then lost. Raises `PeerError` if the peer never sent anything."""
    async with anyio.create_task_group() as group:
        group.start_soon(_tell_of_links, bus, events)
        if timeout and _may_be_mute(bus):
            await anyio.sleep(timeout)
            if not bus.stats().received:
                raise _silent(bus, timeout)


async def _tell_of_links(bus: Bus, events: AsyncIterator[BusEvent]) -> None:
    async for event in events:
        if isinstance(event, LinkDown):
            if not bus.stats().received and bus.cluster is None:
                raise PeerError(f"the connection closed immediately: {event.reason}; run polybus doctor URL for details")
            say(f"connection lost: {event.reason}; missing publications until it is restored")
        elif isinstance(event, LinkUp) and event.again:
            say("connection restored")


async def _until_signal(scope: anyio.CancelScope) -> None:
    with ending() as signalled:
        await signalled()
        scope.cancel()


def _has_colours(as_json: bool) -> bool:
    return sys.stdout.isatty() and not as_json


def _print_value(value: Any, *, coloured: bool, pretty: bool = False) -> None:
    if coloured:
        Console(soft_wrap=True).print(_coloured(json_line(value, pretty=pretty)))
    else:
        print(json_line(value), flush=True)


def _show(message: Message, *, coloured: bool) -> None:
    if coloured:
        subject = Text(in_one_line(str(message.subject)), style="bold")
        Console(soft_wrap=True).print(subject, _coloured(json_line(message.body)))
    else:
        print(json_line({"subject": message.subject, "body": message.body, "headers": message.headers or {}}), flush=True)


def _coloured(text: str) -> Text:
    """Highlight JSON without interpreting its brackets as rich markup."""
    coloured = Text(text)
    JSONHighlighter().highlight(coloured)
    return coloured
