"""Queries to all nodes of a cluster. Answers are not cached, so they are never stale."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define

from ..errors import BusError, Code, Disconnected
from ..message import Kind, Message
from ..nodes import Node, Survey
from ..plugins import ToNode
from ..plugins.registry import metrics_maker
from ..plugins.tools import log_fields
from ..subjects import check_pattern, wire_pattern

if TYPE_CHECKING:
    from ..integrations import BusParts, PeerParty
    from .backbone import Backbone

logger: logging.Logger = logging.getLogger("polybus.cluster")

PASSES_ON: Final = "passes_on"
"""Subject of a notification that this bus, or a peer of it, relays publications to other buses."""
PATIENCE: Final = 2.0
_SCRAPE: Final = 1.0
"""Seconds that a node gets to answer a Prometheus scrape."""
_MOST: Final = 100_000
"""Maximum number of clients in a node's answer."""
_TEXT: Final = 16 * 1024 * 1024
"""Maximum size of a node's metrics, in bytes."""
_NAME: Final = 200


@define(eq=False)
class Queries:
    _parts: BusParts
    _known: Backbone

    async def nodes(self) -> Survey[Node]:
        clients, silent = await self._all("clients", None, lambda node, answer: [(node, answer)])
        found = [Node("", self._parts.services.id, "", len(self._parts.clients), here=True)]
        for node, count in clients:
            facts = self._facts(node)
            found.append(Node(node, str(facts.get("bus") or ""), str(facts.get("name") or ""), count))
        return Survey(tuple(found), not silent)

    def _facts(self, node: str) -> Any:
        known = self._known.nodes_known.get(node)
        return {} if known is None else known.facts

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Return the clients of all nodes that have subscribed to a pattern.

        Raises:
            LocalProtocolError, ReservedSubject: If the pattern is not valid.
        """
        check_pattern(pattern, self._parts.services.limits.subject)
        wire = wire_pattern(pattern)
        there, silent = await self._all("present", wire, self._remote)
        return Survey((*(peer.public for peer in self._subscribed(wire)), *there), not silent)

    async def peers_of(self, key: str) -> Survey[Any]:
        there, silent = await self._all("peers", key, self._remote)
        return Survey((*(peer.public for peer in self._parts.clients_of(key)), *there), not silent)

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Return this node's name, and the metrics of the machine's other nodes by name, or None for a silent node.

        The names also label the metrics. Equal names are numbered.
        """
        known = self._known.nodes_known
        names: dict[str, str] = {}
        for node in sorted(known, key=lambda node: str(self._facts(node).get("bus"))):
            facts = self._facts(node)
            if facts.get("host") == self._known.host:
                name = str(facts.get("name") or node)
                same = sum(other.partition(" #")[0] == name for other in (self._known.title, *names.values()))
                names[node] = f"{name} #{same + 1}" if same else name
        texts, silent = await self._ask(names, "metrics", lambda node, answer: [(names[node], _unpacked(answer))], _SCRAPE)
        return self._known.title, {**dict(texts), **{names[node]: None for node in silent}}

    def _remote(self, node: str, answer: Any) -> list[Any]:
        rows = answer if isinstance(answer, list) else []
        return [
            self._parts.remote(str(row[0]), node, None if row[1] is None else str(row[1]), str(row[2]))
            for row in rows[:_MOST]
            if isinstance(row, list) and len(row) == 3
        ]

    async def _all(self, subject: str, body: Any, read: Callable[[str, Any], Sequence[Any]]) -> tuple[list[Any], list[str]]:
        return await self._ask(dict.fromkeys(self._known.nodes_known, body), subject, read, PATIENCE)

    async def _ask(
        self, bodies: Mapping[str, Any], subject: str, read: Callable[[str, Any], Sequence[Any]], seconds: float
    ) -> tuple[list[Any], list[str]]:
        """Send each node a request, and return the rows of all answers and the silent nodes."""
        found, silent = dict[str, Sequence[Any]](), list[str]()
        if (cluster := self._known.peer) is None:
            return [], silent

        async def ask(node: str) -> None:
            try:
                answer = await self._parts.ask_inside(ToNode(node), subject, bodies[node], seconds)
                found[node] = read(node, answer)
            except Disconnected:
                if not cluster.connected:
                    silent.append(node)
            except (BusError, TimeoutError):
                silent.append(node)

        async with anyio.create_task_group() as group:
            for node in bodies:
                group.start_soon(ask, node)
        return [one for node in bodies for one in found.get(node, ())], silent

    def answer(self, message: Message) -> None:
        if message.kind is not Kind.REQUEST:
            if message.kind is Kind.NOTIFY and message.subject == PASSES_ON:
                self._parts.join_net()
            elif message.kind is Kind.OPEN:
                self._parts.refuse(message, Code.UNIMPLEMENTED, "a node itself does not have streams", kind=Kind.END)
            return
        try:
            body = message.body
        except BusError:
            body = None
        subject = message.subject
        if subject == "clients":
            answer: Any = len(self._parts.clients)
        elif subject == "present" and isinstance(body, (str, int)):
            answer = [_row(peer) for peer in self._subscribed(body)]
        elif subject == "peers" and isinstance(body, str):
            answer = [_row(peer) for peer in self._parts.clients_of(body)]
        elif subject == "metrics" and isinstance(body, str):
            self._tell_metrics(message, body[:_NAME])
            return
        else:
            self._parts.refuse(message, Code.UNIMPLEMENTED, f"a node of this version does not answer {subject!r}")
            return
        self._parts.answer(message, answer)

    def _tell_metrics(self, message: Message, name: str) -> None:
        """Answer with this node's compressed metrics. Any error is logged and sent as an answer, so that the link survives."""
        try:
            metrics = metrics_maker("node", "metrics=True")(self._parts.services.bus, name)
            self._parts.answer(message, zlib.compress(metrics.encode(), 1))
        except ImportError:
            self._parts.refuse(message, Code.UNIMPLEMENTED, "prometheus-client is not installed at this node")
        except Exception as error:  # a collector of the application may raise anything
            text, fields = "the metrics of this node cannot be sent to another one: %s", log_fields(message.peer)
            self._parts.services.running.warnings.warn(logger, text, str(error), error=error, extra=fields)
            self._parts.refuse(message, Code.INTERNAL, "the metrics of this node cannot be collected")

    def _subscribed(self, pattern: str | int) -> list[PeerParty]:
        return [peer for peer in self._parts.clients if pattern in peer.patterns]


def _unpacked(answer: Any) -> str | None:
    try:
        return zlib.decompressobj().decompress(answer, _TEXT).decode()
    except (TypeError, ValueError, zlib.error):
        return None


def _row(peer: PeerParty) -> list[Any]:
    return [peer.id, peer.identity_key, peer.protocol]
