"""Questions that all nodes of a cluster are asked, and answer: nothing of it is remembered, so there are no ghosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from attrs import define

from .._bus.cluster import Node, Survey
from .._bus.remote_peer import RemotePeer
from .._peer.responses import response_to, send_error
from ..errors import BusError, Code, Disconnected
from ..message import Kind, Message
from ..plugins import NodeJoined, ToNode
from ..subjects import check_pattern, wire_pattern

if TYPE_CHECKING:
    from .._bus.parts import BusParts
    from .._peer.peer import Peer

PATIENCE: Final = 2.0
"""Seconds for a node to answer."""
_MOST: Final = 100_000
"""Clients that one node tells of."""


class KnownNodes(Protocol):
    """The part that knows the other nodes."""

    @property
    def nodes_known(self) -> dict[str, NodeJoined]: ...
    @property
    def peer(self) -> Peer | None: ...


@define(eq=False)
class Queries:
    """Asks all nodes, and answers for this one."""

    _parts: BusParts
    _known: KnownNodes

    # -- asking ----------------------------------------------------------------------------------------------------------

    async def nodes(self) -> Survey[Node]:
        """Ask all nodes for what they are."""
        clients, complete = await self._all("clients", None, lambda node, answer: [(node, answer)])
        services = self._parts.services
        found = [Node("", services.id, "", self._count_clients(), here=True)]
        for node, count in clients:
            facts = self._facts(node)
            found.append(Node(node, str(facts.get("bus") or ""), str(facts.get("name") or ""), count))
        return Survey(tuple(found), complete)

    def _facts(self, node: str) -> Any:
        known = self._known.nodes_known.get(node)
        return {} if known is None else known.facts

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Ask all nodes which of their clients have subscribed to a pattern.

        Raises:
            LocalProtocolError, ReservedSubject: The pattern is not valid.
        """
        check_pattern(pattern, self._parts.services.limits.subject)
        wire = wire_pattern(pattern)
        there, complete = await self._all("present", wire, self._remote)
        return Survey((*self._subscribed(wire), *there), complete)

    async def peers_of(self, key: str) -> Survey[Any]:
        """Ask all nodes which of their clients are a user."""
        there, complete = await self._all("peers", key, self._remote)
        return Survey((*self._with_key(key), *there), complete)

    def _remote(self, node: str, answer: Any) -> list[RemotePeer]:
        rows = answer if isinstance(answer, list) else []
        return [
            RemotePeer(self._parts.links, str(row[0]), node, None if row[1] is None else str(row[1]), str(row[2]))
            for row in rows[:_MOST]
            if isinstance(row, list) and len(row) == 3
        ]

    async def _all(self, subject: str, body: Any, read: Callable[[str, Any], Sequence[Any]]) -> tuple[list[Any], bool]:
        """Ask each node that is known. A node that is gone has nothing; one that is silent makes the answer incomplete."""
        found: dict[str, Sequence[Any]] = {}
        nodes, cluster = list(self._known.nodes_known), self._known.peer
        if cluster is None:
            return [], True
        silent: list[str] = []

        async def ask(node: str) -> None:
            try:
                answer = await cluster.send_request(Kind.REQUEST, subject, body, PATIENCE, Any, None, ToNode(node))
                found[node] = read(node, answer)
            except Disconnected:
                if not cluster.connected:
                    silent.append(node)
            except (BusError, TimeoutError):
                silent.append(node)

        async with anyio.create_task_group() as group:
            for node in nodes:
                group.start_soon(ask, node)
        return [one for node in nodes for one in found.get(node, ())], not silent

    # -- answering -------------------------------------------------------------------------------------------------------

    def answer(self, message: Message, cluster: Peer) -> None:
        """Answer another node."""
        if message.kind is not Kind.REQUEST:
            if message.kind is Kind.OPEN:
                send_error(cluster, message, Code.UNIMPLEMENTED, "a node has no streams of its own", kind=Kind.END)
            return
        try:
            body = message.body
        except BusError:
            body = None
        subject = message.subject
        if subject == "clients":
            answer: Any = self._count_clients()
        elif subject == "present" and isinstance(body, (str, int)):
            answer = [_row(peer) for peer in self._subscribed(body)]
        elif subject == "peers" and isinstance(body, str):
            answer = [_row(peer) for peer in self._with_key(body)]
        else:
            send_error(cluster, message, Code.UNIMPLEMENTED, f"{subject!r} is nothing that this version answers as a node")
            return
        cluster.link.answer(response_to(message, answer, cluster.link), cluster)

    def _clients(self) -> list[Peer]:
        return [peer for peer in self._parts.links.peers if not peer.link.upstream and peer.connected]

    def _count_clients(self) -> int:
        return len(self._clients())

    def _subscribed(self, pattern: str | int) -> list[Peer]:
        return [peer for peer in self._clients() if pattern in peer.patterns]

    def _with_key(self, key: str) -> list[Peer]:
        return [peer for peer in self._clients() if peer.identity_key == key]


def _row(peer: Peer) -> list[Any]:
    return [peer.id, peer.identity_key, peer.protocol]
