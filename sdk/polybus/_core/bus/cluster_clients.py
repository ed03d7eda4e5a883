"""`RemotePeer`, a client of another node, and `User`, who may have connections to this bus and to other nodes."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

import anyio
from msgspec import Struct

from ...errors import Disconnected
from ...headers import check_headers
from ...message import Kind, Message
from ...nodes import Survey
from ...plugins import ToClient, ToUser
from ...subjects import AnySubject, Subject, resolve
from ..peer.party_verbs import ChosenParty, Party, PartyVerbs
from ..rpc.reply import Reply, failed_reply

if TYPE_CHECKING:
    from ..peer.peer_core import PeerCore
    from ..rpc.channel import Channel
    from ..runtime.services import Services
    from .links import LinkRegistry


In = TypeVar("In")

_ONLINE = "_polybus.online"
"""Subject of requests to the node that a user is connected to."""
_PATIENCE = 2.0
"""Seconds to wait for the user's node, or for the engine to process announcements."""


class ClusterParty(Struct, frozen=True, eq=False):
    """Sends through the cluster, to a client of another node or to a user."""

    host: LinkRegistry
    to: ToClient | ToUser

    @property
    def services(self) -> Services:
        return self.host.services

    def send_request(
        self, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        cluster = self.host.inner_peer
        if cluster is not None:
            return cluster.send_request(subject, body, timeout, returns, headers, self.to)
        return failed_reply(self.services.running, subject, returns, timeout, self._nowhere())

    async def send_notify(self, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        await self._tell(Kind.NOTIFY, subject, body, headers)

    async def open_channel(self, subject: str | int, body: Any, mode: str, timeout: float | None) -> Channel[Any, Any]:
        self.services.running.check_here()
        return await self._inner().open_channel(subject, body, mode, timeout, to=self.to)

    async def publish(self, subject: AnySubject, body: Any, headers: Mapping[str, str] | None) -> None:
        name, _ = resolve(subject, Any)
        services = self.host.services
        if isinstance(subject, Subject):
            body = services.published(subject, subject.given(body))
        services.subjects.check(name)
        services.running.check_here()
        await self._tell(Kind.PUBLISH, name, body, None if headers is None else check_headers(headers, services.limits.headers))

    async def _tell(self, kind: Kind, subject: str | int, body: Any, headers: dict[str, str] | None) -> None:
        cluster = self._inner()
        link = cluster.link
        message = Message(kind, subject, None, None, link.format, headers, attributes={"to": self.to})
        if body is not None:
            message.format = chosen = link.format_for(body, subject)
            message.raw = message.checked = chosen.encode(body)
        await cluster.send_notification(message)

    def _inner(self) -> PeerCore:
        cluster = self.host.inner_peer
        if cluster is None:
            raise self._nowhere()
        return cluster

    def _nowhere(self) -> Disconnected:
        to = self.to
        who = f"the user {to.key!r} is not connected here" if isinstance(to, ToUser) else "the peer is at another node"
        return Disconnected(f"{who}, and this bus is not in a cluster", "", False)


def _nearest(cluster: ClusterParty, key: str, subject: str | int) -> Party:
    """Return the user's newest connection to this bus, or otherwise the way through the cluster."""
    return max(cluster.host.peers_of(key), key=lambda peer: peer.connected_at, default=cluster)


class ClusterVerbs(PartyVerbs):
    __slots__ = ()
    _cluster: ClusterParty

    @overload
    async def publish(self, subject: Subject[In, Any], body: In = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    @overload
    async def publish(self, subject: str | int, body: Any = ..., *, headers: Mapping[str, str] | None = ...) -> None: ...
    async def publish(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish only to this client, or to all connections of this user, even if they have no matching subscription.

        See `Bus.publish`. Publishing to a user who is not connected is not an error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As for `Bus.publish`.
            QueueFull: If an outbox is full, for example the one to the engine.
            Disconnected: If this bus has left the client's cluster.
        """
        await self._publish(subject, body, headers)

    async def _publish(self, subject: AnySubject, body: Any, headers: Mapping[str, str] | None) -> None:
        await self._cluster.publish(subject, body, headers)


class RemotePeer(ClusterVerbs):
    """A client that is connected to another node of the cluster. Has the verbs of a `Peer`.

    Attributes:
        id: The client's `Peer.id` on its node.
        node: The `Node.id` of the client's node.
        identity_key: Key of the client's identity, or `None`.
        protocol: Name of the client's protocol.
    """

    __slots__ = ("_cluster", "_party", "id", "identity_key", "node", "protocol")

    def __init__(self, links: LinkRegistry, id: str, node: str, identity_key: str | None = None, protocol: str = "") -> None:
        self._party = self._cluster = ClusterParty(links, ToClient(node, id))
        self.id: str = id
        self.node: str = node
        self.identity_key: str | None = identity_key
        self.protocol: str = protocol

    def __repr__(self) -> str:
        return f"<RemotePeer {self.id} at the node {self.node}>"


class User(ClusterVerbs):
    """A user with any number of connections. Returned by `Bus.user`.

    Requests go to one connection, preferably on this bus. Publications go to all connections.

    Attributes:
        key: The `Identity.key` that `authenticate` returned for the user.
    """

    __slots__ = ("_cluster", "_links", "_party", "key")

    def __init__(self, links: LinkRegistry, key: str) -> None:
        self._links = links
        self._cluster = ClusterParty(links, ToUser(key))
        self._party = ChosenParty(links.services, partial(_nearest, self._cluster, key))
        self.key: str = key

    def __repr__(self) -> str:
        return f"<User {self.key!r}>"

    async def _publish(self, subject: AnySubject, body: Any, headers: Mapping[str, str] | None) -> None:
        links = self._links
        here = [peer.public for peer in links.peers_of(self.key)]
        if here or links.inner_peer is None:
            await links.services.bus.publish(subject, body, headers=headers, to=here)
        if links.inner_peer is not None:
            await super()._publish(subject, body, headers)

    async def online(self) -> bool:
        """Return True if the user is connected to any node of the cluster. This takes a round trip, because nothing is cached.

        If the user is connected to this bus, the other nodes can also reach the user once this returns, unless the engine is
        down or does not confirm within 2 s.

        Raises:
            Disconnected: If the user is not connected to this bus, and the engine of the cluster is down.
            DeadlineExceeded: If the user's node does not answer within 2 s.
        """
        links = self._links
        if links.peers_of(self.key):
            with anyio.move_on_after(_PATIENCE):
                await links.pubsub.announcer.known_inside()
            return True
        cluster = links.inner_peer
        if cluster is None:
            return False
        try:
            return bool(await cluster.send_request(_ONLINE, None, _PATIENCE, Any, None, self._cluster.to))
        except Disconnected as error:
            if error.sent or not cluster.connected:
                raise
            return False

    async def peers(self) -> Survey[Any]:
        """Find all connections of the user. Each result is either a `Peer` of this bus or a `RemotePeer`."""
        links = self._links
        if links.mesh is None:
            return Survey(tuple(peer.public for peer in links.peers_of(self.key)))
        return await links.mesh.peers_of(self.key)
