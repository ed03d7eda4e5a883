"""Loop prevention: each bus accepts a publication only once and in order, and messages cannot circulate between buses.

The header ``polybus-via: <id>.<hops>.<origin>.<number>,<bus>,<bus>`` records the route of a message:

* ``id``: A random string, which is the same on all routes of a publication, or ``-`` for requests.
* ``hops``: Number of bridges and tunnels on the way, at most `Limits.hops`.
* ``origin``, ``number``: A stream of publications and the position in it, set by the first bus that sends over several routes.
  They reveal copies that arrive after a later publication.
* The buses on the way. Beyond `_BUSES`, only the first and the latest are listed. A bus drops messages that list it.

The header is removed before handlers run. An invalid header counts as zero hops and affects no other message.

A malicious bus could send the header of a publication before the publication itself, or with a higher number. Therefore ids and
numbers are stored by subject, so that only peers that may publish to the subject can suppress its publications. Numbers are
also stored by identity; see `vouched`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from zlib import crc32

import anyio
from msgspec import Struct, field

from ..._util.sources import sources
from ...headers import TRACE, VIA
from ...message import Message
from ...plugins.extensions import core_of
from ...stats import Counters
from ...subjects import canonical

if TYPE_CHECKING:
    from .ports import CallingPeer

_REMEMBERED: Final = 16_384
"""Maximum number of ids and streams to remember."""
_LONGEST: Final = 64
_BUSES: Final = 32
"""Maximum number of buses in the header. In longer loops, the first bus or one that knows the id drops the message."""
_NUMBER: Final = 18


OF_BRIDGES: Final = (VIA, TRACE)
"""Headers that bridges add for peers that can read them."""


class ViaHeader(NamedTuple):
    id: str = "-"
    hops: int = 0
    origin: str = ""
    number: int = 0
    buses: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join((f"{self.id}.{self.hops}.{self.origin}.{self.number}", *self.buses))

    @classmethod
    def start(cls, origin: str = "", number: int = 0) -> ViaHeader:
        """Create the header of a publication, with an id that peers cannot guess."""
        return cls(sources.get().urandom(8).hex(), 0, origin, number)

    @classmethod
    def read(cls, text: str) -> ViaHeader:
        """Parse a header, which may contain anything."""
        head, *buses = text.split(",")
        id, _, rest = head.partition(".")
        hops, _, rest = rest.partition(".")
        origin, _, number = rest.rpartition(".")
        counted = _count(number) if origin else 0
        return cls(
            id[:_LONGEST] or "-",
            _count(hops),
            origin[:_LONGEST] if counted else "",
            counted,
            tuple(bus[:_LONGEST] for bus in _kept(buses)),
        )

    @classmethod
    def of(cls, message: Message) -> ViaHeader:
        return cls.read((message.headers or {}).get(VIA, "-"))

    @staticmethod
    def strip(message: Message) -> None:
        """Remove the header at the destination, because handlers may copy headers."""
        message.headers = {name: value for name, value in (message.headers or {}).items() if name != VIA} or None

    def extend(self, bus: str) -> ViaHeader:
        return self._replace(buses=tuple(_kept((*self.buses, bus))))

    def in_stream(self, origin: str) -> ViaHeader:
        return self._replace(origin=origin)

    def add_hops(self, more: int) -> ViaHeader:
        return self._replace(hops=self.hops + more) if more else self


def _kept(buses: Sequence[str]) -> Sequence[str]:
    return buses if len(buses) <= _BUSES else (*buses[:1], *buses[1 - _BUSES :])


def _count(text: str) -> int:
    return int(text) if len(text) <= _NUMBER and text.isascii() and text.isdigit() else 0


def depth_of(peer: CallingPeer) -> int:
    transport = peer.link.transport
    return 0 if transport is None else transport.hops


def depth_of_sender(message: Message) -> int:
    return 0 if message.peer is None else depth_of(core_of(message.peer))


def too_far(subject: str | int, hops: int, limit: int) -> str:
    return f"{subject!r} has come through {hops} bridges and tunnels: the limit is {limit} (Limits.hops)"


def vouched(origin: str, peer: CallingPeer | None) -> str:
    """Return the name of a stream with the identity of its sender, so that clients cannot affect streams of others.

    The name is the same on all links of that identity. Without `authenticate`, and on links that this bus opened, streams keep
    their names.
    """
    digest = None if peer is None or not origin else _identity_digest(peer)
    if digest is None:
        return origin
    base, _, before = origin.partition("~")
    if before and before != digest:
        base = _short(origin)
    return f"{base}~{digest}"


def quota_owner(peer: CallingPeer) -> str:
    """Return the identity or network address to charge memory to, or "" on links that this bus opened."""
    share = peer.link.share
    return _identity_digest(peer) or ("" if share is None else share.address.network)


def _short(text: str) -> str:
    return hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _identity_digest(peer: CallingPeer) -> str | None:
    """Return a digest of an identity's key or value, or of the peer's id if the value is not a string or number."""
    identity, key = peer.identity, peer.identity_key
    if identity is None and (key is None or peer.link.services.access.authenticate is None):
        return None  # without `authenticate`, the key is only the number of a client behind a broker
    if key is not None:
        return _short(key)
    return _short(str(identity) if isinstance(identity, (str, int)) else peer.id)


class _Memory(Struct, eq=False):
    """Numbers by key. When it is full, the owner with the most keys loses the older half, so that others aren't affected."""

    _numbers: dict[tuple[str, int], tuple[int, str]] = {}
    """Numbers with their first owner."""
    _keys: dict[str, dict[tuple[str, int], None]] = {}
    """Keys of each owner, from the least to the most recently updated."""

    def __len__(self) -> int:
        return len(self._numbers)

    def raise_to(self, key: tuple[str, int], number: int, owner: str) -> bool:
        """Store a number if it is higher than the stored one. Returns True if it is."""
        last, first = self._numbers.get(key, (0, owner))
        if number <= last:
            return False
        if len(self._numbers) >= _REMEMBERED and not last:
            self._forget()
        keys = self._keys.setdefault(first, {})
        keys.pop(key, None)
        keys[key] = None
        self._numbers[key] = number, first
        return True

    def _forget(self) -> None:
        owner, keys = max(self._keys.items(), key=lambda one: len(one[1]))
        for key in [*islice(keys, (len(keys) + 1) // 2)]:
            del keys[key], self._numbers[key]
        if not keys:
            del self._keys[owner]


class Deduplicator(Struct, eq=False):
    """Detects publications that arrive twice or late, and numbers outgoing ones."""

    _bus: str
    _counters: Counters
    _number: int = 0
    _ids: _Memory = field(default_factory=_Memory)
    _streams: _Memory = field(default_factory=_Memory)

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def via_of(self, message: Message) -> ViaHeader:
        """Return the header of a publication, which is the same for all routes.

        There is a stream for each local subject, because bridges may merge subjects, and each priority, because protocols may
        reorder priorities.
        """
        known = message.shared.get(VIA)
        if known is not None:
            return ViaHeader.read(known.decode())
        sort = message.attributes.get("priority")
        if message.peer is not None:
            sort = f"{sort} relayed"  # relayed publications may overtake this bus's own ones that wait for room
        self._number += 1
        stream = crc32(f"{message.subject} {sort}".encode("utf-8", "surrogatepass"))
        via = ViaHeader.start(f"{self._bus}-{stream:x}", self._number).add_hops(depth_of_sender(message))
        message.shared[VIA] = str(via).encode()
        return via

    def onward(self, message: Message, via: ViaHeader | None = None) -> Message:
        return message.with_headers({**(message.headers or {}), VIA: str((via or self.via_of(message)).extend(self._bus))})

    # -- incoming --------------------------------------------------------------------------------------------------------

    def is_news(
        self, via: ViaHeader, subject: str | int, group: tuple[str, str | int] | None = None, *, owner: str = ""
    ) -> bool:
        """Return True if a publication is new and in order. Late ones count as dropped.

        The memory for the publication is charged to `owner`; see `quota_owner`.

        An engine sends separate copies for each `group` and its pattern. They aren't in order and include publications of this
        bus.
        """
        if self.is_own(via) and (group is None or via.buses[-1] != self._bus):
            return False
        # Peers cannot find colliding subjects, because Python salts the hashes of strings.
        of_subject = canonical(subject) if isinstance(subject, str) else subject
        name = hash(of_subject if group is None else (of_subject, group))
        if not self._ids.raise_to((via.id, name), 1, owner):
            return False
        if group is None and via.origin and not self._streams.raise_to((via.origin, name), via.number, owner):
            self._counters.dropped += 1
            return False
        return True

    def is_own(self, via: ViaHeader) -> bool:
        return self._bus in via.buses


_SHORTEST: Final = 16
P = TypeVar("P", bound=Hashable)


class BusIdentities(Struct, eq=False):
    """Finds out which links lead to the same bus.

    Clients send their bus's secret in a hello, and servers prove that they know the secret of theirs.
    """

    _secret: str = field(default_factory=lambda: sources.get().urandom(16).hex())
    changed: Callable[[], None] = lambda: None
    """Called when results of `same` or `held_out` may change."""
    _names: dict[Hashable, str] = {}
    """Secrets of peers, sent by clients or proved by servers."""
    _identities: dict[Hashable, object] = {}
    """Identities of clients, for comparison."""
    _asked: dict[Hashable, str] = {}
    """Nonces sent to servers."""
    _proofs: dict[Hashable, str] = {}
    _told: set[Hashable] = set()
    """Peers that were sent a hello on the current connection."""
    pending: dict[Hashable, None] = {}
    """Servers that haven't answered their first hello yet."""
    held_out: dict[Hashable, None] = {}
    """Peers that receive no publications until nothing is pending, because another link may lead to the same bus."""
    _answered: anyio.Event | None = None

    def introduction(self, peer: Hashable) -> dict[str, str]:
        nonce = self._asked.get(peer)
        if nonce is None:
            nonce = self._asked[peer] = sources.get().urandom(8).hex()
        self._told.add(peer)
        return {"secret": self._secret, "nonce": nonce}

    def expect_answer(self, peer: Hashable) -> None:
        """Expect the answer to the first hello on a new link."""
        if peer not in self._asked:
            self.pending[peer] = None
            if self._names:
                self.held_out[peer] = None
                self.changed()

    def has_told(self, peer: Hashable) -> bool:
        return peer in self._told

    def answer(self, nonce: Any) -> dict[str, str]:
        return {"proof": _proof(self._secret, nonce)} if _is_token(nonce) else {}

    def take_secret(self, peer: Hashable, name: Any, identity: object = None) -> bool:
        """Record the secret of a client, with its identity. Returns True unless the client is held out."""
        if not _is_token(name):
            self.release(peer)
        elif peer not in self._names:  # later secrets are ignored, so that clients cannot cause work by changing them
            self._names[peer] = name
            if identity is not None:
                self._identities[peer] = identity
            for other, proof in self._proofs.items():
                if _is_proof(proof, name, self._asked[other]):
                    self._names[other] = name
            if self.pending:
                self.held_out[peer] = None
            else:
                self.held_out.pop(peer, None)
            self.changed()
        return peer not in self.held_out

    def take_proof(self, peer: Hashable, proof: Any) -> None:
        """Record the proof of a server, or None if its answer contains no proof."""
        nonce = self._asked.get(peer)
        if _is_token(proof) and nonce is not None and self._proofs.get(peer) != proof:
            self._proofs[peer] = proof
            self._names.pop(peer, None)
            for name in dict.fromkeys(self._names.values()):
                if _is_proof(proof, name, nonce):
                    self._names[peer] = name
                    break
            self.changed()
        if peer in self.pending:
            del self.pending[peer]
            if not self.pending:
                self.settle()

    def wait_for(self, peer: Hashable) -> bool:
        """Hold out a client that would receive all publications, if it may be the same bus as a server. Returns True if so."""
        if self._proofs:
            self.held_out[peer] = None
            self.changed()
        return bool(self._proofs)

    def release(self, peer: Hashable) -> None:
        if peer in self.held_out:
            del self.held_out[peer]
            self.changed()

    def settle(self) -> None:
        if self.held_out:
            self.held_out.clear()
            self.changed()
        if self._answered is not None:
            self._answered.set()
            self._answered = None

    async def settled(self, patience: float) -> None:
        if self.pending:
            if self._answered is None:
                self._answered = anyio.Event()
            with anyio.move_on_after(patience):
                await self._answered.wait()
        self.settle()

    def lost(self, peer: Hashable) -> None:
        """Called when a connection is lost but its link may reconnect."""
        self._told.discard(peer)

    def forget(self, peer: Hashable) -> None:
        self._told.discard(peer)
        for known in (self._names, self._identities, self._asked, self._proofs):
            known.pop(peer, None)
        self.take_proof(peer, None)
        self.held_out.pop(peer, None)

    def same(self, peers: Iterable[P]) -> tuple[tuple[P, ...], ...]:
        names = self._names
        by_name: dict[str, list[P]] = {}
        for peer in peers if len(names) > 1 else ():
            if (name := names.get(peer)) is not None:
                by_name.setdefault(name, []).append(peer)
        found = [group for each in by_name.values() for group in self._of_one_identity(each)]
        return tuple(tuple(group) for group in found if len(group) > 1)

    def _of_one_identity(self, peers: list[P]) -> list[list[P]]:
        """Split peers with the same secret by identity, because different identities mean different buses."""
        identities = {peer: self._identities[peer] for peer in peers if peer in self._identities}
        several = set(identities.values())
        return [peers] if len(several) < 2 else [[peer for peer in peers if identities.get(peer) == one] for one in several]


def _is_token(text: Any) -> bool:
    return isinstance(text, str) and _SHORTEST <= len(text) <= _LONGEST


def _proof(name: str, nonce: str) -> str:
    key, question = (text.encode("utf-8", "surrogatepass") for text in (name, nonce))
    return hmac.new(key, question, hashlib.sha256).hexdigest()


def _is_proof(proof: str, name: str, nonce: str) -> bool:
    return hmac.compare_digest(proof.encode("utf-8", "surrogatepass"), _proof(name, nonce).encode())
