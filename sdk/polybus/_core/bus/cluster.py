"""Options of a bus that is a node of a cluster, and what the core asks of the room that makes it one."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Protocol, TypeVar, overload
from urllib.parse import unquote, urlsplit, urlunsplit

from attrs import field, frozen

from ..._secrets import shown_url
from ..._validation import at_least, check_type, seconds, shown
from ...plugins.targets import check_tls
from ...stats import DurableStats
from ..peer import ports as peer_ports
from ..pubsub.ports import StoredPort
from .store import Store, overlapping

if TYPE_CHECKING:
    import ssl

    from ..link.link import Link
    from ..peer.peer import Peer
    from .lifecycle import Lifespan

T_co = TypeVar("T_co", covariant=True)

VARIABLE: Final = "POLYBUS_CLUSTER"
"""The environment variable that ``auto`` reads."""
_TOKEN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_PLAIN: Final = frozenset(("memory", "tcp", "unix", "ws"))
"""Transports that have no TLS."""


def _check_name(cluster: Any, attribute: Any, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"Cluster(name={shown(value)}): text, not {type(value).__name__}")
    if not 0 < len(value) <= 100 or not _TOKEN.issuperset(value):
        raise ValueError(f"Cluster(name={value!r:.60}): 1 to 100 letters, digits, '-' and '_'")


def _check_time(cluster: Any, attribute: Any, value: Any) -> None:
    _ = seconds(value, attribute.name)


def _check_tls(cluster: Any, attribute: Any, value: object) -> None:
    check_tls(value)


def _check_gap(cluster: Any, attribute: Any, value: object) -> None:
    if value not in ("tell", "disconnect"):
        raise ValueError(f"Cluster(gap={value!r:.60}): 'tell' or 'disconnect'")


def _stores(given: Any) -> tuple[Store, ...]:
    if isinstance(given, (str, Store)) or not isinstance(given, Iterable):
        raise TypeError(f"Cluster(stores={shown(given)}): several stores, for example stores=[Store('orders', 'orders.>')]")
    stores = tuple(given)
    for store in stores:
        check_type(store, Store, "stores", "stores=[Store('orders', 'orders.>')]")
        if store is None or sum(other.name == store.name for other in stores) > 1:
            raise ValueError(f"Cluster(stores={shown(given)}): one Store for each name")
    for one, other in itertools.combinations(stores, 2):
        for subject in other.subjects:
            found = overlapping(subject, one.subjects)
            if found is not None:
                raise ValueError(
                    f"Cluster(stores=...): stores {one.name!r} and {other.name!r}: {found!r} and {subject!r} have subjects in "
                    "common, and each is kept by one store"
                )
    return stores


@frozen
class Cluster:
    r"""The cluster that a bus is a node of: ``Bus(cluster=Cluster("nats+tls://nats.internal/shop"))``.

    Args:
        url: The engine, ``nats+tcp://host`` (or ``tls``, ``ws``, ``wss``); of ``tcp`` and ``tls`` the path is the name of the
            cluster. ``auto`` reads ``POLYBUS_CLUSTER``; where that is not set the bus is alone.
        name: The name of the cluster, where the URL says none. Clusters of other names do not hear this one.
        wait: Seconds to wait for the engine when the bus is entered.
        gap: What happens after the engine was away, when publications of other nodes may have been missed: ``tell`` gives the
            event `ClusterGap`, ``disconnect`` closes the connections of clients besides (1012), so that they come back and read
            anew.
        settle: Seconds at the most for which requests and publications wait after the engine has come back until the nodes
            that were there before are back too.
        outage: Seconds without the engine, or without a word from it (3 s at least), after which this node is not ready:
            ``/readyz`` is 503, with the reason, and what a client asks of the cluster (`Bus.forward`) is answered `Unavailable`
            at once. Before that it waits in the outbox, as do all requests of this program itself, until the engine is back or
            their time is up.
        remember: Seconds for which this node remembers what others have handled. A request for a subject whose last handler
            went, or was killed, in that time is answered `Unavailable`, which ``Retry()`` repeats; later, and where this node
            has never known a handler, it is `NoHandler`. 0 remembers nothing.
        handover: Seconds at the end of a drain for which publications are kept for the clients that were told to go: another
            node to which such a client comes has them handed over. They begin anew with each client that comes back, and are
            part of the drain's. 0 keeps none.
        running: Requests of the cluster that run here at once.
        waiting: Requests of the cluster that wait here for a place; one more is asked elsewhere.
        stores: `Store`\ s of this application, which the engine makes when the bus is entered: what is published to their
            subjects is kept. The engine needs JetStream.

    Raises:
        TypeError, ValueError: An argument is not what it should be.
    """

    url: str = field(default="auto", repr=shown_url)
    name: str = field(default="polybus", validator=_check_name, kw_only=True)
    wait: float = field(default=10.0, validator=_check_time, kw_only=True)
    gap: Literal["tell", "disconnect"] = field(default="tell", validator=_check_gap, kw_only=True)
    settle: float = field(default=1.5, validator=_check_time, kw_only=True)
    outage: float = field(default=5.0, validator=_check_time, kw_only=True)
    remember: float = field(default=60.0, validator=_check_time, kw_only=True)
    handover: float = field(default=2.0, validator=_check_time, kw_only=True)
    running: int = field(default=64, validator=at_least(1), kw_only=True)
    waiting: int = field(default=64, validator=at_least(0), kw_only=True)
    stores: Sequence[Store] = field(default=(), converter=_stores, kw_only=True)
    tls: ssl.SSLContext | None = field(default=None, validator=_check_tls, kw_only=True)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.url, str):
            raise TypeError(f"cluster={shown(self.url)}: a URL, 'auto' or Cluster(...), not {type(self.url).__name__}")
        if self.url != "auto":
            url, _ = self._split(self.url)
            if self.tls is not None and self.tls_for(url) is None:
                raise ValueError(
                    f"cluster={_without_secrets(self.url)!r}: tls= is for nats+tls:// and nats+wss://, and this one is in plain"
                )

    @classmethod
    def of(cls, given: object) -> Cluster | None:
        """Make the options of what ``Bus(cluster=...)`` was given.

        Raises:
            TypeError, ValueError: It is none.
        """
        if given is None or isinstance(given, Cluster):
            return given
        check_type(given, str, "cluster", "cluster='auto', a URL, or Cluster(...)")
        return cls(str(given))

    def resolved(self) -> tuple[str, str] | None:
        """Find the URL of the engine, without the name of the cluster, and that name; None where the bus is alone.

        Raises:
            ValueError: The URL, or that in the environment, is not one of NATS.
        """
        url = os.environ.get(VARIABLE, "") if self.url == "auto" else self.url
        return self._split(url) if url else None

    def tls_for(self, url: str) -> ssl.SSLContext | None:
        """Find the context for an engine; None for one without TLS, and where that of the system will do."""
        return None if urlsplit(url).scheme.rpartition("+")[2] in _PLAIN else self.tls

    def _split(self, url: str) -> tuple[str, str]:
        parts = urlsplit(url)
        protocol, _, transport = parts.scheme.partition("+")
        if protocol != "nats" or not transport:
            raise ValueError(
                f"cluster={_without_secrets(url)!r}: the URL of a NATS server, for example nats+tcp://127.0.0.1:4222/shop"
            )
        if transport not in ("tcp", "tls"):
            return url, self.name
        if "@" in parts.path:
            raise ValueError(f"cluster={_without_secrets(url)!r}: a '/' in a user, password or token is written %2F")
        name = unquote(parts.path.strip("/"))
        if name:
            _check_name(self, None, name)
        return urlunsplit((parts.scheme, parts.netloc, "", parts.query, parts.fragment)), name or self.name


def _without_secrets(url: str) -> str:
    head, at, tail = url.partition("#")[0].rpartition("@")
    scheme, _, _ = head.rpartition("://")
    return shown_url(f"{scheme}://...@{tail}" if at else tail)[1:-1][:100]


@frozen(eq=False)
class Survey(Generic[T_co], Sequence[T_co]):
    """The answers of the nodes of a cluster: a sequence.

    Attributes:
        complete: True if all nodes that are known have answered, or are gone; False if one has stayed silent.
    """

    _found: tuple[T_co, ...]
    complete: bool = True

    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[T_co, ...]: ...
    def __getitem__(self, index: int | slice) -> T_co | tuple[T_co, ...]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[T_co]:
        return iter(self._found)

    def __repr__(self) -> str:
        return f"Survey({list(self._found)!r}, complete={self.complete})"


@frozen
class Node:
    """One node of a cluster.

    Attributes:
        id: Its name on the engine, another one for each of its connections; empty for a bus that is alone.
        bus: Random text, the same as long as the bus lives.
        name: For people: the name of its host and the number of its process.
        clients: Connections of clients there.
        here: True for this very bus.
    """

    id: str
    bus: str
    name: str
    clients: int
    here: bool = False


class HandoverPort(peer_ports.HandoverPort, Protocol):
    """The handing over of clients from one node to another, as the life of a bus sees it too."""

    @property
    def busy(self) -> bool:
        """Tells whether clients are about to be taken over here."""
        ...

    def park(self) -> None:
        """Keep publications for the clients that are connected, for whom this is the last turn."""

    async def handed_over(self, until: float) -> None:
        """Wait until the clients have been taken over by other nodes, a bounded time, and keep nothing any more."""


class DurablePort(StoredPort, Protocol):
    """The readers of a bus at one engine, as its life sees them: `cluster.durable.readers`."""

    @property
    def busy(self) -> bool:
        """Tells whether stored publications are being handled."""
        ...

    @property
    def progress(self) -> tuple[DurableStats, ...]:
        """The state of durable handlers, as the engine told it last."""
        ...

    def begin(self) -> None:
        """Begin to take what is stored."""

    def withdraw(self) -> None:
        """Take nothing more."""

    def give_back(self) -> None:
        """Take nothing more, and have what is being handled come again at once, to others."""


class ClusterPort(Protocol):
    """The room that makes a bus a node: `polybus.cluster`."""

    @property
    def durable(self) -> DurablePort | None:
        """The durable handlers; None while the bus has none, or is not in the cluster."""
        ...

    @property
    def handover(self) -> HandoverPort:
        """The part that hands clients over."""
        ...

    @property
    def peer(self) -> Peer | None:
        """The cluster, as the peer of its link; None while there is none, or the bus is alone."""
        ...

    @property
    def entered(self) -> bool:
        """True once the engine was reached, and keeps what this bus wants it to."""
        ...

    def outage(self) -> str:
        """Say since when the engine is away or silent, where that is longer than it may; else empty."""
        ...

    def around(self, lifespan: Lifespan | None) -> Lifespan:
        """Make the lifespan that connects to the engine before the given one begins, and leaves after it."""
        ...

    def link_up(self, link: Link) -> None:
        """Take note that the link to the engine can be used."""

    def link_moved(self) -> None:
        """Take note that it goes on over another connection."""

    def link_down(self) -> None:
        """Take note that it is down, and may come back."""

    def client_up(self, peer: Peer) -> None:
        """Take note of a client that has connected here."""

    def client_gone(self, peer: Peer) -> None:
        """Take note of a client that has gone."""

    def forward(self, pattern: str | int) -> None:
        """Send what clients ask, and this bus does not handle, on to the cluster."""

    async def nodes(self) -> Survey[Node]:
        """Ask all nodes for what they are."""
        ...

    async def present(self, pattern: str | int) -> Survey[Any]:
        """Ask all nodes which of their clients have subscribed to a pattern."""
        ...

    async def peers_of(self, key: str) -> Survey[Any]:
        """Ask all nodes which of their clients are a user."""
        ...

    async def metrics(self) -> tuple[str, dict[str, str | None]]:
        """Give the name of this node, and the metrics of the others on this machine: texts by name, None of a silent one."""
        ...
