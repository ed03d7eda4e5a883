"""Destinations behind the cluster: a client of another node, and a user, wherever connected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, overload

import anyio
from attrs import define

from ...contracts.verbs import client_of
from ...errors import Disconnected
from ...headers import check_headers
from ...message import Kind, Message
from ...nodes import Survey
from ...plugins import ToClient, ToUser
from ...subjects import AnySubject, Subject, resolve
from ..rpc.asker import Asker
from ..rpc.reply import Reply

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from ..peer.peer import Peer
    from ..rpc.channel import Channel
    from ..runtime.services import Services
    from .links import LinkRegistry
    from .parts import BusParts

In = TypeVar("In")
P = TypeVar("P")

_ONLINE = "_polybus.online"
"""The request that the node answers to which a user is connected."""
_PATIENCE = 2.0
"""Seconds for the answer to it, or for the engine to take in whom this node has."""


@define(eq=False, repr=False)
class RemotePeer(Asker):
    """A client that is connected to another node of the cluster. It has the verbs of a `Peer`.

    Attributes:
        id: As its `Peer.id` there.
        node: The node, as `Node.id`.
        identity_key: The key of its identity, or None.
        protocol: The name of its protocol.
    """

    links: LinkRegistry
    """The links of this bus. For the rooms of this package, as all that follows without being documented."""
    id: str
    node: str
    identity_key: str | None = None
    protocol: str = ""

    @property
    def _to(self) -> ToClient:
        return ToClient(self.node, self.id)

    def __repr__(self) -> str:
        return f"<RemotePeer {self.id} at the node {self.node}>"

    @property
    def services(self) -> Services:
        return self.links.services

    def send_request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        return _ask(self.links, self._to, kind, subject, body, timeout, returns, headers)

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        await _tell(self.links, self._to, Kind.NOTIFY, subject, body, headers)

    async def open_channel(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any
    ) -> Channel[Any, Any]:
        return await _open(self.links, self._to, subject, body, mode, timeout, receives)

    @overload
    async def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    async def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    async def publish(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish to this client alone. See `Bus.publish`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.publish`.
            QueueFull: The outbox to the engine is full.
            Disconnected: This bus is no node of a cluster any more.
        """
        name, body, checked = _publication(self.links, subject, body, headers)
        await _tell(self.links, self._to, Kind.PUBLISH, name, body, checked)

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, each of which asks this client. See `Bus.client`.

        Raises:
            TypeError: As `Bus.client`.
        """
        return client_of(self, contract, prefix)


class User(Asker):
    """A user, on whatever connections: `Bus.user`.

    What is asked goes to one of them, here where the user is connected to this very bus; what is published goes to all.

    Attributes:
        key: The key of the identity that `authenticate` gave; see `plugins.Identity`.
    """

    __slots__ = ("_links", "_parts", "key")

    def __init__(self, parts: BusParts, key: str) -> None:
        self._parts = parts
        self._links = parts.links
        self.key: str = key

    def __repr__(self) -> str:
        return f"<User {self.key!r}>"

    def _here(self) -> list[Peer]:
        return self._links.peers_of(self.key)

    def _newest(self) -> Peer | None:
        return max(self._here(), key=lambda peer: peer.connected_at, default=None)

    @property
    def services(self) -> Services:
        return self._parts.services

    def send_request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        peer = self._newest()  # of several connections the newest is asked
        if peer is not None:
            return peer.send_request(kind, subject, body, timeout, returns, headers)
        return _ask(self._links, ToUser(self.key), kind, subject, body, timeout, returns, headers)

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        peer = self._newest()
        if peer is not None:
            await peer.send_notify(subject, body, headers)
        else:
            await _tell(self._links, ToUser(self.key), Kind.NOTIFY, subject, body, headers)

    async def open_channel(
        self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any
    ) -> Channel[Any, Any]:
        peer = self._newest()
        if peer is not None:
            return await peer.open_channel(subject, body, mode, timeout, receives)
        return await _open(self._links, ToUser(self.key), subject, body, mode, timeout, receives)

    @overload
    async def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    async def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    async def publish(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish to all connections of the user, whatever they have subscribed to. See `Bus.publish`.

        A user who is connected nowhere does not hear it; that is no error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.publish`.
            QueueFull: An outbox is full.
        """
        here = self._here()
        if here or self._links.inner_peer is None:
            await self._parts.services.bus.publish(subject, body, headers=headers, to=here)
        if self._links.inner_peer is not None:
            name, body, checked = _publication(self._links, subject, body, headers)
            await _tell(self._links, ToUser(self.key), Kind.PUBLISH, name, body, checked)

    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, each of which asks one connection of the user. See `Bus.client`.

        Raises:
            TypeError: As `Bus.client`.
        """
        return client_of(self, contract, prefix)

    async def online(self) -> bool:
        """Ask whether the user is connected, here or to another node; one round trip, and nothing is remembered.

        A user who is online here is one whom all other nodes can ask, too: the engine knows, or is not there, or does not
        answer within 2 s.

        Raises:
            Disconnected: The user is not here, and the engine of the cluster is not there.
            DeadlineExceeded: The node that has the user does not answer within 2 s.
        """
        if self._here():
            with anyio.move_on_after(_PATIENCE):
                await self._parts.pubsub.announcer.known_inside()
            return True
        cluster = self._links.inner_peer
        if cluster is None:
            return False
        try:
            return bool(await cluster.send_request(Kind.REQUEST, _ONLINE, None, _PATIENCE, Any, None, ToUser(self.key)))
        except Disconnected as error:
            if error.sent or not cluster.connected:
                raise
            return False

    async def peers(self) -> Survey[Any]:
        """Find all connections of the user: a `Survey` of `Peer` here, and `RemotePeer` at other nodes.

        Raises:
            Disconnected: The engine of the cluster is not there.
        """
        port = self._links.mesh
        if port is None:
            return Survey(tuple(self._here()))
        return await port.peers_of(self.key)


def _ask(
    links: LinkRegistry,
    to: ToUser | ToClient,
    kind: Kind,
    subject: str | int,
    body: Any,
    timeout: float,
    returns: Any,
    headers: dict[str, str] | None,
) -> Reply[Any]:
    cluster = links.inner_peer
    if cluster is not None:
        return cluster.send_request(kind, subject, body, timeout, returns, headers, to)
    runtime = links.services.running
    now = runtime.time()
    failed: Reply[Any] = Reply(runtime.loop, subject, returns, now, now + timeout)
    failed.fail(_nowhere(to))
    return failed


def _publication(
    links: LinkRegistry, subject: AnySubject, body: Any, headers: Mapping[str, str] | None
) -> tuple[str | int, Any, dict[str, str] | None]:
    """Check the arguments of a publication."""
    name, _ = resolve(subject, Any)
    services = links.services
    if isinstance(subject, Subject):
        body = services.published(subject, subject.given(body))
    services.subjects.check(name)
    services.running.check_here()
    return name, body, None if headers is None else check_headers(headers, services.limits.headers)


async def _tell(
    links: LinkRegistry,
    to: ToUser | ToClient,
    kind: Kind,
    subject: str | int,
    body: Any,
    headers: dict[str, str] | None,
) -> None:
    cluster = links.inner_peer
    if cluster is None:
        raise _nowhere(to)
    link = cluster.link
    message = Message(kind, subject, None, None, link.format, headers, attributes={"to": to})
    if body is not None:
        message.format = chosen = link.format_for(body, subject)
        message.raw = message.checked = chosen.encode(body)
    await cluster.send_notification(message)


async def _open(
    links: LinkRegistry,
    to: ToUser | ToClient,
    subject: str | int,
    body: Any,
    mode: str,
    timeout: float | None,
    receives: Any,
) -> Channel[Any, Any]:
    cluster = links.inner_peer
    if cluster is None:
        raise _nowhere(to)
    return (await cluster.streams.open(subject, body, mode, timeout, to=to)).typed(receives)


def _nowhere(to: ToUser | ToClient) -> Disconnected:
    who = f"the user {to.key!r} is not connected here" if isinstance(to, ToUser) else "the peer is at another node"
    return Disconnected(f"{who}, and this bus is no node of a cluster", "", False)
