"""Configuration of a cluster and its stores, and results of queries to its nodes."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

from attrs import field, frozen
from attrs.validators import optional
from msgspec import Struct

from ._util.pattern_index import tokens_overlap
from ._validation import at_least, check_characters, check_choice, check_given, check_tls, check_type, seconds, shown, yes_or_no
from .secrets import shown_url
from .subjects import check_pattern, is_pattern, wire_pattern

if TYPE_CHECKING:
    import ssl

Start: TypeAlias = Literal["all", "new"] | timedelta | int
"""Start position of a durable handler: with all stored messages, with new messages, with messages up to a given age, or at a
sequence number."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DEAD: Final = "dead"
_LONGEST_ID: Final = 256
_LONGEST: Final = timedelta(days=290 * 365).total_seconds()
"""Largest number of seconds that fits into 64 bits as nanoseconds."""
_SHORTEST_AGE: Final = 0.1
"""Limits that the engine sets for seconds, bytes and servers."""
_LARGEST: Final = (1 << 63) - 1
_SERVERS: Final = 5


def as_seconds(value: Any, name: str) -> float:
    """Convert a number or a `timedelta` to seconds. Raises `TypeError` or `ValueError` unless it is a positive time."""
    found = value.total_seconds() if isinstance(value, timedelta) else seconds(value, name)
    if not 0 < found < _LONGEST:
        raise ValueError(f"{name}={shown(value)} must be more than 0 and less than {_LONGEST:.0f} seconds")
    return found


def check_publication_id(id: Any) -> None:
    check_given(id, str, "id", "id=str(order.id)")
    if not 0 < len(id) <= _LONGEST_ID or not id.isprintable() or id != id.strip():
        raise ValueError(f"id={id!r:.60} must have 1 to {_LONGEST_ID} printable characters, without spaces at the start or end")


def _age(store: Any, attribute: Any, value: Any) -> None:
    if as_seconds(value, attribute.name) < _SHORTEST_AGE:
        raise ValueError(f"{attribute.name}={shown(value)} must be at least {_SHORTEST_AGE} seconds")


def _window(store: Any, attribute: Any, value: Any) -> None:
    as_seconds(value, attribute.name)


@frozen(init=False)
class Store:
    """Messages to store in a cluster's NATS server (its engine): ``Store("orders", "orders.>", max_age=timedelta(days=7))``

    `Bus.publish` to a subject in the store returns once the engine has stored the message. A missing store is created. If the
    store exists with different settings, it is left unchanged and an error is raised.

    Args:
        name: 1 to 100 letters, digits, ``-`` and ``_``. The JetStream stream is named ``CLUSTER-name``.
        subjects: Patterns of the subjects to store. URIs must not have wildcards. Stores in the same cluster must not overlap.
        max_age: Age in seconds or as a `timedelta` after which messages are removed, or None to keep them.
        max_bytes: Maximum size of the store in bytes, or None for the limit of the engine. `Bus.publish` raises `QueueFull`
            when the store is full.
        replicas: Number of servers that store each message, at most 5. With 2n + 1, the store survives the failure of n
            servers.
        dedup: Time in seconds or as a `timedelta` during which messages with a repeated id are discarded, at least 0.1 s.
            Limited to `max_age`.
        work: Use the store as a work queue: messages are removed once a durable handler has processed them. The patterns of its
            durable handlers must not overlap, and handlers start with all stored messages.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        LocalProtocolError, ReservedSubject: If a pattern is invalid.
    """

    name: str
    subjects: tuple[str | int, ...]
    max_age: float | timedelta | None = field(default=None, validator=optional(_age))
    max_bytes: int | None = field(default=None, validator=optional(at_least(1, _LARGEST)))
    replicas: int = field(default=1, validator=at_least(1, _SERVERS))
    dedup: float | timedelta = field(default=120.0, validator=_window)
    work: bool = field(default=False, validator=yes_or_no)

    def __init__(
        self,
        name: str,
        *subjects: str | int,
        max_age: float | timedelta | None = None,
        max_bytes: int | None = None,
        replicas: int = 1,
        dedup: float | timedelta = 120.0,
        work: bool = False,
    ) -> None:
        check_store_name(name)
        if name == _DEAD:
            raise ValueError(f"Store({name!r}): this name is reserved for dead letters; choose another name")
        if not subjects:
            raise ValueError(f"Store({name!r}): pass a pattern to store, for example Store({name!r}, '{name}.>')")
        for subject in subjects:
            check_pattern(subject)
            if isinstance(subject, str) and "/" in subject and is_pattern(subject):
                raise ValueError(
                    f"Store({name!r}, {subject!r}): a pattern of URIs would store all of them: pass each URI in full"
                )
        for number, subject in enumerate(subjects):
            other = overlapping(subject, subjects[:number])
            if other is not None:
                raise ValueError(f"Store({name!r}): {other!r} and {subject!r} have subjects in common: omit the narrower one")
        self.__attrs_init__(name, subjects, max_age, max_bytes, replicas, dedup, work)  # pyright: ignore[reportAttributeAccessIssue]  # attrs makes it


def overlapping(subject: str | int, others: Iterable[str | int]) -> str | int | None:
    """Return the first pattern in `others` that overlaps with `subject`, or None."""
    tokens = _tokens(subject)
    return next((other for other in others if tokens_overlap(_tokens(other), tokens)), None)


def _tokens(subject: str | int) -> list[str]:
    """Return the tokens of the engine's subject. The engine's wildcards also match integers and URIs."""
    if isinstance(subject, int):
        return [f"%i{subject}"]
    name = str(wire_pattern(subject))
    return ["%u", *name.split("/")] if "/" in name else name.split(".")


def check_store_name(name: Any) -> None:
    check_given(name, str, "name", "Store('orders', 'orders.>')")
    _check_characters_of("store", name)


def _check_characters_of(what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"the {what} name {name!r:.60} must have 1 to 100 letters, digits, '-' and '_'")


T_co = TypeVar("T_co", covariant=True)

VARIABLE: Final = "POLYBUS_CLUSTER"
"""Environment variable that ``auto`` reads."""
_PLAIN: Final = frozenset(("memory", "tcp", "unix", "ws"))


def _check_name(cluster: Any, attribute: Any, value: Any) -> None:
    check_given(value, str, "name", "Cluster(name='shop')")
    _check_characters_of("cluster", value)


def _check_time(cluster: Any, attribute: Any, value: Any) -> None:
    _ = seconds(value, attribute.name)


def _check_tls(cluster: Any, attribute: Any, value: object) -> None:
    check_tls(value)


def _check_gap(cluster: Any, attribute: Any, value: object) -> None:
    check_choice(value, ("tell", "disconnect"), "gap")


def _stores(given: Any) -> tuple[Store, ...]:
    if isinstance(given, (str, Store)) or not isinstance(given, Iterable):
        raise TypeError(f"stores={shown(given)} must be a list of stores, for example stores=[Store('orders', 'orders.>')]")
    stores = tuple(given)
    for store in stores:
        check_type(store, Store, "stores", "stores=[Store('orders', 'orders.>')]")
        if store is None or sum(other.name == store.name for other in stores) > 1:
            raise ValueError(f"stores={shown(given)} must contain one Store for each name")
    for one, other in itertools.combinations(stores, 2):
        for subject in other.subjects:
            found = overlapping(subject, one.subjects)
            if found is not None:
                raise ValueError(
                    f"Cluster(stores=...): stores {one.name!r} and {other.name!r}: {found!r} and {subject!r} have subjects in "
                    "common, but a subject belongs to one store"
                )
    return stores


@frozen
class Cluster:
    """The cluster that a bus joins as a node: ``Bus(cluster=Cluster("nats+tls://nats.internal/shop"))``

    Args:
        url: URL of the engine, a NATS server: ``nats+tcp://host`` (or ``tls``, ``ws``, ``wss``). With ``tcp`` and ``tls``, the
            path is the name of the cluster. ``auto`` reads ``POLYBUS_CLUSTER``. Without that variable, the bus has no cluster.
        name: Name of the cluster, unless the URL contains it. Clusters with different names are separate.
        wait: Seconds to wait for the engine on startup.
        gap: What to do after an outage of the engine, when messages from other nodes may have been lost. ``tell`` emits
            `ClusterGap`. ``disconnect`` also closes client connections (1012), so that clients reconnect and reload their
            state.
        settle: After an outage of the engine, maximum number of seconds that requests and publications wait for the previous
            nodes to return.
        outage: Seconds without the engine before this node becomes not ready (at least 3 if the engine merely does not
            respond). From then on, ``/readyz`` returns 503 with the reason, and client requests to the cluster (`Bus.forward`)
            fail with `Unavailable` immediately. Until then, they wait in the outbox. This program's own requests always wait
            for the engine or their deadline.
        remember: Number of seconds that this node remembers other nodes' handlers. When the last handler for a subject has
            left, requests fail with `Unavailable` during this time and with `NoHandler` afterwards. ``Retry()`` retries the
            former. 0 disables this.
        handover: Seconds at the end of a drain during which this node stores messages for clients that it disconnected, until
            each client's new node fetches them. The time restarts whenever a client moves, but never exceeds the drain timeout.
            0 disables this.
        running: Number of requests from the cluster that may run on this node at the same time.
        waiting: Number of requests from the cluster that may wait on this node. Further requests go to another node.
        stores: Stores that this application uses. They are created on startup and require JetStream.
        tls: Client-side TLS context for the engine.

    Raises:
        TypeError, ValueError: If an argument is invalid.
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
            raise TypeError(f"cluster={shown(self.url)} must be a URL, 'auto' or Cluster(...), not {type(self.url).__name__}")
        if self.url != "auto":
            url, _ = self._split(self.url)
            if self.tls is not None and self.tls_for(url) is None:
                raise ValueError(
                    f"cluster={_without_secrets(self.url)!r}: tls= is for nats+tls:// and nats+wss://, not plain connections"
                )

    @classmethod
    def of(cls, given: object) -> Cluster | None:
        """Convert the argument of ``Bus(cluster=...)``. Raises `TypeError` or `ValueError` if it is invalid."""
        if given is None or isinstance(given, Cluster):
            return given
        check_type(given, str, "cluster", "cluster='auto', a URL, or Cluster(...)")
        return cls(str(given))

    def resolved(self) -> tuple[str, str] | None:
        """Return the engine's URL without the cluster name, and the cluster name. Return None if there is no cluster.

        Raises:
            ValueError: If the URL, or the value of ``POLYBUS_CLUSTER``, is not a NATS URL.
        """
        url = os.environ.get(VARIABLE, "") if self.url == "auto" else self.url
        return self._split(url) if url else None

    def tls_for(self, url: str) -> ssl.SSLContext | None:
        """Return the TLS context for an engine, or None for URLs without TLS and for the default context."""
        return None if urlsplit(url).scheme.rpartition("+")[2] in _PLAIN else self.tls

    def _split(self, url: str) -> tuple[str, str]:
        check_characters(url, f"cluster={_without_secrets(url)!r}")
        parts = urlsplit(url)
        protocol, _, transport = parts.scheme.partition("+")
        if protocol != "nats" or not transport:
            raise ValueError(
                f"cluster={_without_secrets(url)!r} must be the URL of a NATS server, for example nats+tcp://127.0.0.1:4222/shop"
            )
        if transport not in ("tcp", "tls"):
            return url, self.name
        if "@" in parts.path:
            raise ValueError(f"cluster={_without_secrets(url)!r}: write a '/' in a user, password or token as %2F")
        name = unquote(parts.path.strip("/"))
        if name:
            _check_name(self, None, name)
        return urlunsplit((parts.scheme, parts.netloc, "", parts.query, parts.fragment)), name or self.name


def _without_secrets(url: str) -> str:
    head, at, tail = url.partition("#")[0].rpartition("@")
    scheme, _, _ = head.rpartition("://")
    return shown_url(f"{scheme}://...@{tail}" if at else tail)[1:-1][:100]


class Survey(tuple[T_co, ...]):
    """Results from the nodes of a cluster, as a sequence.

    Attributes:
        complete: True if all known nodes have responded or left. False while the engine is down.
    """

    complete: bool

    def __new__(cls, found: Iterable[T_co] = (), complete: bool = True) -> Self:
        survey = super().__new__(cls, found)
        survey.complete = complete
        return survey

    def __repr__(self) -> str:
        return f"Survey({[*self]!r}, complete={self.complete})"


class Node(Struct, frozen=True, weakref=True):
    """A node of a cluster.

    Attributes:
        id: Id of the node's connection to the engine. It changes with each connection, and is empty for a bus without a
            cluster.
        bus: Random string that identifies the bus during its lifetime.
        name: Host name and process ID, for display.
        clients: Number of connected clients.
        here: True for this bus.
    """

    id: str
    bus: str
    name: str
    clients: int
    here: bool = False
