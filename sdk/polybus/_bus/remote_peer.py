"""Destinations behind the cluster: a client of another node, and a user, wherever connected."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import define

from .._rpc.channel import Channel, ChannelContext
from .._rpc.reply import Reply
from .._validation import seconds
from ..errors import Disconnected
from ..headers import check_headers
from ..message import Kind, Message
from ..plugins import ToClient, ToUser
from ..subjects import AnySubject, Subject, resolve
from .cluster import Survey

if TYPE_CHECKING:
    from .._peer.peer import Peer
    from .cluster import ClusterPort
    from .links import LinkRegistry
    from .parts import BusParts

_ONLINE = "_polybus.online"
"""The request that the node answers to which a user is connected."""


@define(eq=False, repr=False)
class RemotePeer:
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

    def send_request(
        self, kind: Kind, subject: str | int, body: Any, timeout: float, returns: Any, headers: dict[str, str] | None
    ) -> Reply[Any]:
        """Send a request whose arguments have been checked: for `Bus.request(to=)`.

        Raises:
            EncodeError, LocalProtocolError, Disconnected: As `request`.
        """
        return self.links.choose_cluster().send_request(kind, subject, body, timeout, returns, headers, self._to)

    @property
    def _to(self) -> ToClient:
        return ToClient(self.node, self.id)

    def __repr__(self) -> str:
        return f"<RemotePeer {self.id} at the node {self.node}>"

    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Reply[Any]:
        """Ask this client. See `Bus.request`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.request`.
            Disconnected: (by awaiting) It is not there any more.
        """
        return _ask(self.links, self._to, subject, body, timeout, returns, headers)

    async def notify(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Tell a handler of this client, without an answer. See `Bus.notify`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.notify`.
            QueueFull: The outbox to the engine is full.
            Disconnected: This bus is no node of a cluster any more.
        """
        await _tell(self.links, self._to, Kind.NOTIFY, subject, body, headers)

    async def publish(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish to this client alone. See `Bus.publish`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.publish`.
            QueueFull: The outbox to the engine is full.
            Disconnected: This bus is no node of a cluster any more.
        """
        await _tell(self.links, self._to, Kind.PUBLISH, subject, body, headers)

    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Ask this client for a stream. See `Bus.stream`.

        Raises:
            BusError: (on entering, by iterating) As `Bus.stream`.
        """
        name, returns = resolve(subject, returns)
        return ChannelContext(
            lambda: _open(self.links, self._to, name, body, "stream", timeout, returns), half_closed=True, receives=returns
        )

    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Open a channel to this client. See `Bus.channel`.

        Raises:
            BusError: (on entering, by iterating) As `Bus.channel`.
        """
        name, receives = resolve(subject, receives)
        return ChannelContext(
            lambda: _open(self.links, self._to, name, None, "channel", timeout, receives), half_closed=False, receives=receives
        )


class User:
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
        return [peer for peer in self._links.peers if peer.identity_key == self.key and not peer.gone]

    def _newest(self) -> Peer | None:
        return max(self._here(), key=lambda peer: peer.connected_at, default=None)

    def request(
        self,
        subject: AnySubject,
        body: Any = None,
        *,
        timeout: float = 30.0,
        returns: Any = Any,
        headers: Mapping[str, str] | None = None,
    ) -> Reply[Any]:
        """Ask one connection of the user, the newest where there are several. See `Bus.request`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.request`.
            Disconnected: (by awaiting) The user is not connected: then with ``sent=False``; or has gone meanwhile.
        """
        peer = self._newest()
        if peer is not None:
            name, returns = resolve(subject, returns)
            body = subject.given(body) if isinstance(subject, Subject) else body
            return peer.request(name, body, timeout=timeout, returns=returns, headers=headers)
        return _ask(self._links, ToUser(self.key), subject, body, timeout, returns, headers)

    async def notify(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Tell one connection of the user, without an answer. See `Bus.notify`.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.notify`.
            QueueFull: An outbox is full.
            Disconnected: The user is not connected here, and this bus is no node of a cluster.
        """
        peer = self._newest()
        if peer is not None:
            await peer.notify(subject, body, headers=headers)
        else:
            await _tell(self._links, ToUser(self.key), Kind.NOTIFY, subject, body, headers)

    async def publish(self, subject: AnySubject, body: Any = None, *, headers: Mapping[str, str] | None = None) -> None:
        """Publish to all connections of the user, whatever they have subscribed to. See `Bus.publish`.

        A user who is connected nowhere does not hear it; that is no error.

        Raises:
            EncodeError, ReservedSubject, LocalProtocolError, TypeError, ValueError: As `Bus.publish`.
            QueueFull: An outbox is full.
        """
        here = self._here()
        if here or self._links.cluster_peer is None:
            await self._parts.services.bus.publish(subject, body, headers=headers, to=here)
        if self._links.cluster_peer is not None:
            await _tell(self._links, ToUser(self.key), Kind.PUBLISH, subject, body, headers)

    def stream(
        self, subject: AnySubject, body: Any = None, *, returns: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Ask one connection of the user for a stream. See `Bus.stream`.

        Raises:
            BusError: (on entering, by iterating) As `Bus.stream`.
        """
        name, returns = resolve(subject, returns)
        return ChannelContext(lambda: self._open(name, body, "stream", timeout, returns), half_closed=True, receives=returns)

    def channel(
        self, subject: AnySubject, *, sends: Any = Any, receives: Any = Any, timeout: float | None = None
    ) -> ChannelContext[Any, Any]:
        """Open a channel to one connection of the user. See `Bus.channel`.

        Raises:
            BusError: (on entering, by iterating) As `Bus.channel`.
        """
        name, receives = resolve(subject, receives)
        return ChannelContext(
            lambda: self._open(name, None, "channel", timeout, receives), half_closed=False, receives=receives
        )

    async def _open(self, subject: str | int, body: Any, mode: str, timeout: float | None, receives: Any) -> Channel[Any, Any]:
        peer = self._newest()
        if peer is None:
            return await _open(self._links, ToUser(self.key), subject, body, mode, timeout, receives)
        self._parts.services.subjects.check(subject)
        return (await peer.streams.open(subject, body, mode, timeout)).typed(receives)

    async def online(self) -> bool:
        """Ask whether the user is connected, here or to another node; one round trip, and nothing is remembered.

        Raises:
            Disconnected: The engine of the cluster is not there.
            DeadlineExceeded: The node that has the user does not answer within 2 s.
        """
        if self._here():
            return True
        cluster = self._links.cluster_peer
        if cluster is None:
            return False
        try:
            return bool(await cluster.send_request(Kind.REQUEST, _ONLINE, None, 2.0, Any, None, ToUser(self.key)))
        except Disconnected as error:
            if error.sent or not cluster.connected:
                raise
            return False

    async def peers(self) -> Survey[Any]:
        """Find all connections of the user: a `Survey` of `Peer` here, and `RemotePeer` at other nodes.

        Raises:
            Disconnected: The engine of the cluster is not there.
        """
        port: ClusterPort | None = self._links.cluster
        if port is None:
            return Survey(tuple(self._here()))
        return await port.peers_of(self.key)


def _ask(
    links: LinkRegistry,
    to: ToUser | ToClient,
    subject: AnySubject,
    body: Any,
    timeout: float,
    returns: Any,
    headers: Mapping[str, str] | None,
) -> Reply[Any]:
    name, returns = resolve(subject, returns)
    if isinstance(subject, Subject):
        body = subject.given(body)
    timeout = seconds(timeout)
    services = links.services
    services.subjects.check(name)
    checked = None if headers is None else check_headers(headers, services.limits.headers)
    cluster = links.cluster_peer
    if cluster is not None:
        return cluster.send_request(Kind.REQUEST, name, body, timeout, returns, checked, to)
    runtime = services.running
    now = runtime.time()
    failed: Reply[Any] = Reply(runtime.loop, name, returns, now, now + timeout)
    failed.fail(_nowhere(to))
    return failed


async def _tell(
    links: LinkRegistry,
    to: ToUser | ToClient,
    kind: Kind,
    subject: AnySubject,
    body: Any,
    headers: Mapping[str, str] | None,
) -> None:
    name, _ = resolve(subject, Any)
    if isinstance(subject, Subject):
        body = subject.given(body)
    services = links.services
    services.subjects.check(name)
    services.running.check_here()
    checked = None if headers is None else check_headers(headers, services.limits.headers)
    cluster = links.cluster_peer
    if cluster is None:
        raise _nowhere(to)
    link = cluster.link
    message = Message(kind, name, None, None, link.format, checked, attributes={"to": to})
    if body is not None:
        message.format = chosen = link.format_for(body, name)
        message.raw = chosen.encode(body)
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
    links.services.subjects.check(subject)
    cluster = links.cluster_peer
    if cluster is None:
        raise _nowhere(to)
    return (await cluster.streams.open(subject, body, mode, timeout, to=to)).typed(receives)


def _nowhere(to: ToUser | ToClient) -> Disconnected:
    who = f"the user {to.key!r} is not connected here" if isinstance(to, ToUser) else "the peer is at another node"
    return Disconnected(f"{who}, and this bus is no node of a cluster", "", False)
