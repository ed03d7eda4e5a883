"""`polybus request`, `stream`, `publish` and `subscribe`."""

from __future__ import annotations

import math
import signal
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
from ..plugins.extensions import party_of
from ..plugins.tools import in_one_line
from ..subjects import literal_wildcards
from .options import AnyUrl, Body, Header, Json, Tls, Url, Wait, argument, connects, duration, option
from .problems import PeerError, UsageError, say, unwrapped
from .values import cluster_of, connecting, hasty_bus, json_line, parse_body, parse_subject

_WITHOUT_HANDSHAKE = ("tcp", "unix")
"""Transports without a handshake: an open connection does not prove that there is a bus at the other end."""

SubjectArgument = Annotated[str, argument("SUBJECT", "Subject, for example user.get")]


@connects
def request(
    url: AnyUrl,
    subject: SubjectArgument,
    body: Body = None,
    timeout: Annotated[float, duration("Seconds to wait for the answer.")] = 30.0,
    user: Annotated[str, option("KEY", "In a cluster: ask this user, connected to any worker, instead of a handler.")] = "",
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
    if sys.stdout.isatty() and not as_json:
        Console(soft_wrap=True).print(_coloured(json_line(answer, pretty=True)))
    else:
        print(json_line(answer), flush=True)


@connects
def stream(
    url: Url,
    subject: SubjectArgument,
    body: Body = None,
    count: Annotated[int, option("N", "Stop after so many items; 0 reads all.", min=0)] = 0,
    timeout: Annotated[float, duration("Seconds for the whole stream; 0 for no limit.")] = 0.0,
    as_json: Json = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Request a stream and print its items, one line of JSON each."""
    name, value = parse_subject(url, subject), parse_body(body)
    coloured = sys.stdout.isatty() and not as_json

    def show(item: Any) -> None:
        if coloured:
            Console(soft_wrap=True).print(_coloured(json_line(item)))
        else:
            print(json_line(item), flush=True)

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
            "Seconds to connect, to queue, to store, and for a first answer on protocols without a handshake; 0 for no limit."
        ),
    ] = 5.0,
    user: Annotated[str, option("KEY", "In a cluster: publish only to this user, connected to any worker.")] = "",
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Publish a message. Subscribers do not confirm it; status 1 if a NATS server should store it and does not."""
    name, value = parse_subject(url, subject), parse_body(body)
    _check_user(url, user)

    async def tell() -> None:
        async with connecting(url, header, tls, wait, timeout) as bus:
            if user:
                if not await bus.user(user).online():
                    raise _not_there(user)
                await bus.user(user).publish(name, value)
                return
            if bus.cluster is not None or ProtocolFeatures.of(party_of(bus.peers[0]).link.adapter).keeps:
                from ..cluster.durable.administration import publish_stored  # an eighth of a second, only for NATS

                await publish_stored(bus, name, value, timeout)
                return
            with _meant_for_peers(bus):
                await bus.publish(name, value, timeout=timeout)
            await _sign_of_life(bus, timeout)

    anyio.run(tell)


@connects
def subscribe(
    url: AnyUrl,
    pattern: Annotated[str, argument("PATTERN", "* matches one token, > the rest: news.*")],
    as_json: Json = False,
    count: Annotated[int, option("N", "Stop after so many; 0 for no limit.", min=0)] = 0,
    timeout: Annotated[float, duration("Seconds for a first answer on protocols without a handshake; 0 for no limit.")] = 5.0,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
) -> None:
    """Print publications, one line of JSON each."""
    name = parse_subject(url, pattern)
    if text := literal_wildcards(name):
        say(text)
    show = partial(_show, pretty=sys.stdout.isatty() and not as_json)

    async def listen() -> None:
        bus = hasty_bus(timeout, cluster_of(url, wait, tls))
        events = bus.events()  # before there is a link, which may end at once
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
        raise UsageError("--user needs a cluster: its URL is nats+tcp://host/name, or auto for POLYBUS_CLUSTER")


def _not_there(user: str) -> PeerError:
    return PeerError(
        f"the user {user!r} is not connected to any node of the cluster: is this the key that authenticate returned?"
    )


@contextmanager
def _body_may_be_missing(body: str | None) -> Iterator[None]:
    """Add to the error for a refused body that no BODY was given (PeerError)."""
    try:
        yield
    except BadRequest as error:
        if body is not None or not (error.text or "").startswith("the body does not fit"):
            raise
        raise PeerError(f"{error}; no BODY was given, for example '{{\"id\": 7}}' or '\"Ann\"'") from None


@contextmanager
def _meant_for_peers(bus: Bus) -> Iterator[None]:
    """Explain the error of a peer without publications: not a polybus peer, or a silent one (PeerError)."""
    try:
        yield
    except Unsupported as error:
        peer = next(iter(bus.peers), None)
        if peer is None or repr(peer) not in str(error):
            raise
        text = str(error).replace(repr(peer), peer.address)
        raise PeerError(f"{text}; or it uses another protocol than the URL: see polybus doctor URL") from None


async def _sign_of_life(bus: Bus, timeout: float) -> None:
    """Wait for a sign of life, since a publication has no answer: without a handshake, ask the peer's identity once a second,
    and raise PeerError if it stays silent."""
    if not timeout or not _may_be_mute(bus):
        return
    peer = bus.peers[0]
    with anyio.move_on_after(timeout):
        for _ in range(math.ceil(timeout)):
            if await peer.extended() or bus.stats().received:
                return
    raise _silent(bus, timeout)


def _may_be_mute(bus: Bus) -> bool:
    """True if the peer has sent nothing and neither transport nor protocol has a handshake."""
    if bus.cluster is not None:  # NATS has a handshake
        return False
    peer = bus.peers[0]
    return peer.transport in _WITHOUT_HANDSHAKE and party_of(peer).speaks_extensions is None


def _silent(bus: Bus, timeout: float) -> PeerError:
    return PeerError(
        f"{bus.peers[0].address} accepts the connection but has sent nothing for {timeout:g} s: "
        "does it use this protocol? polybus doctor URL shows more, --timeout 0 skips this check"
    )


async def _print(source: AbstractAsyncContextManager[Any], count: int, show: Callable[[Any], None]) -> None:
    """Print items, and stop after `count`; 0 for all."""
    async with source as items:
        async for item in items:
            show(item)
            count -= 1
            if count == 0:
                return


async def _watch(bus: Bus, events: AsyncIterator[BusEvent], timeout: float) -> None:
    """Report a link that is down, which misses publications; raises PeerError for one that was never alive."""
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
                raise PeerError(f"the link ended at once: {event.reason}; polybus doctor URL shows more")
            say(f"the link is down: {event.reason}; publications are missed until it is back")
        elif isinstance(event, LinkUp) and event.again:
            say("the link is back")


async def _until_signal(scope: anyio.CancelScope) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            scope.cancel()
            return


def _show(message: Message, *, pretty: bool) -> None:
    if pretty:
        subject = Text(in_one_line(str(message.subject)), style="bold")
        Console(soft_wrap=True).print(subject, _coloured(json_line(message.body)))
    else:
        print(json_line({"subject": message.subject, "body": message.body, "headers": message.headers or {}}), flush=True)


def _coloured(text: str) -> Text:
    """JSON for a terminal, with brackets as text, not as markup."""
    coloured = Text(text)
    JSONHighlighter().highlight(coloured)
    return coloured
