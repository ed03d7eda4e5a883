"""Loop prevention: each bus accepts each publication once, in order, and no route over buses is endless.

The header ``polybus-via: <id>.<hops>.<origin>.<number>,<bus>,<bus>`` records the route of a message:

* ``id``: random text, the same on all routes of one publication; ``-`` for a request, which has one route.
* ``hops``: bridges and tunnels passed, at most `Limits.hops`.
* ``origin``, ``number``: a stream of publications and the place in it, set by the first bus that sends over several routes:
  receivers detect a copy that arrives after a later publication.
* The buses passed since, at most `_BUSES`: the first and the latest. A bus drops a message that names the bus itself.

Handlers never see the header. Invalid text harms only its own message: it counts as zero hops and as no copy.

A bus could send a known header ahead of its publication, or with a higher number. So ids and numbers count per subject: only a
peer that may publish to that subject can displace its publications. Numbers also count per identity: see `vouched`.
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
from ...headers import VIA
from ...message import Message
from ...plugins.extensions import party_of
from ...stats import Counters
from ...subjects import canonical

if TYPE_CHECKING:
    from .ports import CallingPeer

_REMEMBERED: Final = 16_384
"""Ids, and streams."""
_LONGEST: Final = 64
_BUSES: Final = 32
"""Bus names kept. A longer loop ends where it began, or at a bus that knows the id or number."""
_NUMBER: Final = 18


TRACE: Final = "traceparent"
OF_BRIDGES: Final = (VIA, TRACE)
"""Headers that cross every bridge, to peers that can read them."""


class ViaHeader(NamedTuple):
    """The buses, bridges and tunnels that a message has passed."""

    id: str = "-"
    hops: int = 0
    origin: str = ""
    number: int = 0
    buses: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ",".join((f"{self.id}.{self.hops}.{self.origin}.{self.number}", *self.buses))

    @classmethod
    def start(cls, origin: str = "", number: int = 0) -> ViaHeader:
        """Start the route of a publication, optionally in a stream. Its random id cannot be guessed and taken by a peer."""
        return cls(sources.get().urandom(8).hex(), 0, origin, number)

    @classmethod
    def read(cls, text: str) -> ViaHeader:
        """Parse a header; a peer may have written anything."""
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
        """Remove the header at the destination: handlers may forward headers."""
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
    """Number of tunnels between the sender of a message and this bus."""
    return 0 if message.peer is None else depth_of(party_of(message.peer))


def too_far(subject: str | int, hops: int, limit: int) -> str:
    """Error text for a message that exceeds the limit."""
    return f"{subject!r} has come through {hops} bridges and tunnels: the limit is {limit} (Limits.hops)"


def vouched(origin: str, peer: CallingPeer | None) -> str:
    """Name a stream by the identity of its sender.

    A peer must not be able to affect another's streams. So a stream is renamed for each identity that this bus authenticated,
    the same on all its links. Names stay without `authenticate`, and over dialled links.
    """
    voice = None if peer is None or not origin else _voice(peer)
    if voice is None:
        return origin
    base, _, before = origin.partition("~")
    if before and before != voice:
        base = _short(origin)
    return f"{base}~{voice}"


def speaker(peer: CallingPeer) -> str:
    """Source of a statement, to limit the memory: an identity, a network address, or "" for a dialled link."""
    share = peer.link.share
    return _voice(peer) or ("" if share is None else share.address.network)


def _short(text: str) -> str:
    return hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _voice(peer: CallingPeer) -> str | None:
    """Mark for an identity: its key, its text or number, or else this one peer."""
    identity, key = peer.identity, peer.identity_key
    if identity is None and (key is None or peer.link.services.access.authenticate is None):
        return None  # behind a broker there is a key in any case: the client's number
    if key is not None:
        return _short(key)
    return _short(str(identity) if isinstance(identity, (str, int)) else peer.id)


class _Memory(Struct, eq=False):
    """Numbers by keys. When full, the speaker with the most keys loses the older half: no peer can displace others' numbers."""

    _numbers: dict[tuple[str, int], tuple[int, str]] = {}
    """Each with its first speaker."""
    _said: dict[str, dict[tuple[str, int], None]] = {}
    """Keys of each speaker, the least recently raised first."""

    def __len__(self) -> int:
        return len(self._numbers)

    def raise_to(self, key: tuple[str, int], number: int, speaker: str) -> bool:
        """Keep the higher number. True if that is `number`."""
        last, first = self._numbers.get(key, (0, speaker))
        if number <= last:
            return False
        if len(self._numbers) >= _REMEMBERED and not last:
            self._forget()
        said = self._said.setdefault(first, {})
        said.pop(key, None)
        said[key] = None
        self._numbers[key] = number, first
        return True

    def _forget(self) -> None:
        speaker, said = max(self._said.items(), key=lambda one: len(one[1]))
        for key in [*islice(said, (len(said) + 1) // 2)]:
            del said[key], self._numbers[key]
        if not said:
            del self._said[speaker]


class Deduplicator(Struct, eq=False):
    """Remembers publications that have passed other buses, or leave over several routes."""

    _bus: str
    _counters: Counters
    _number: int = 0
    _ids: _Memory = field(default_factory=_Memory)
    _streams: _Memory = field(default_factory=_Memory)

    # -- outgoing --------------------------------------------------------------------------------------------------------

    def via_of(self, message: Message) -> ViaHeader:
        """Make the header of a publication, the same for all routes.

        Its stream is that of its local subject, because bridges may merge subjects, and of its priority, because a wire may
        reorder priorities.
        """
        known = message.shared.get(VIA)
        if known is not None:
            return ViaHeader.read(known.decode())
        sort = message.attributes.get("priority")
        if message.peer is not None:
            sort = f"{sort} relayed"  # this bus's own publications may wait for room while relayed ones pass
        self._number += 1
        stream = crc32(f"{message.subject} {sort}".encode("utf-8", "surrogatepass"))
        via = ViaHeader.start(f"{self._bus}-{stream:x}", self._number).add_hops(depth_of_sender(message))
        message.shared[VIA] = str(via).encode()
        return via

    def onward(self, message: Message, via: ViaHeader | None = None) -> Message:
        """Copy a publication for other buses, with its header."""
        return message.with_headers({**(message.headers or {}), VIA: str((via or self.via_of(message)).extend(self._bus))})

    # -- incoming --------------------------------------------------------------------------------------------------------

    def is_news(
        self, via: ViaHeader, subject: str | int, group: tuple[str, str | int] | None = None, *, speaker: str = ""
    ) -> bool:
        """Check that a publication is new and in order; a late one counts as dropped.

        Each `group`, with its pattern, gets its own copy, in no order, even of this bus's own last publication: an engine
        distributes it among all members.
        """
        if self.is_own(via) and (group is None or via.buses[-1] != self._bus):
            return False
        # Python salts text hashes per process: no peer can find a colliding subject.
        of_subject = canonical(subject) if isinstance(subject, str) else subject
        name = hash(of_subject if group is None else (of_subject, group))
        if not self._ids.raise_to((via.id, name), 1, speaker):
            return False
        if group is None and via.origin and not self._streams.raise_to((via.origin, name), via.number, speaker):
            self._counters.dropped += 1
            return False
        return True

    def is_own(self, via: ViaHeader) -> bool:
        return self._bus in via.buses


_SHORTEST: Final = 16
P = TypeVar("P", bound=Hashable)


class BusIdentities(Struct, eq=False):
    """The buses at the other ends of links, and the proof of this bus's own identity."""

    _secret: str = field(default_factory=lambda: sources.get().urandom(16).hex())
    changed: Callable[[], None] = lambda: None
    """Called when `same` may change, or a peer is held out."""
    _names: dict[Hashable, str] = {}
    """Secrets of peers: sent by dialling peers, proved by dialled ones."""
    _voices: dict[Hashable, object] = {}
    """Comparable identities of peers that dialled."""
    _asked: dict[Hashable, str] = {}
    """Nonces sent to dialled peers."""
    _proofs: dict[Hashable, str] = {}
    _told: set[Hashable] = set()
    """Peers that have received our hello on the current connection."""
    pending: dict[Hashable, None] = {}
    """Dialled peers without a first answer."""
    held_out: dict[Hashable, None] = {}
    """Peers excluded from publications until nothing is pending: another link may lead to the same bus."""
    _answered: anyio.Event | None = None

    def introduction(self, peer: Hashable) -> dict[str, str]:
        nonce = self._asked.get(peer)
        if nonce is None:
            nonce = self._asked[peer] = sources.get().urandom(8).hex()
        self._told.add(peer)
        return {"secret": self._secret, "nonce": nonce}

    def expect_answer(self, peer: Hashable) -> None:
        """Expect an answer to the next hello on a new link."""
        if peer not in self._asked:
            self.pending[peer] = None
            if self._names:
                self.held_out[peer] = None
                self.changed()

    def has_told(self, peer: Hashable) -> bool:
        """Check whether a peer has received the identity of this bus."""
        return peer in self._told

    def answer(self, nonce: Any) -> dict[str, str]:
        return {"proof": _proof(self._secret, nonce)} if _is_token(nonce) else {}

    def take_secret(self, peer: Hashable, name: Any, voice: object = None) -> bool:
        """Record the secret of a peer that dialled. True if it is comparable with all others now.

        `voice` is the mark of its identity, or None.
        """
        if not _is_token(name):
            self.release(peer)
        elif peer not in self._names:  # only the first secret counts, so that changing it costs this bus nothing
            self._names[peer] = name
            if voice is not None:
                self._voices[peer] = voice
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
        """Record the proof of a dialled peer; None if it sent none."""
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
        """Hold out a peer that dialled and would get all publications, until it identifies itself. True if held out: this bus
        has dialled a polybus peer that may be the same bus.
        """
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
        """Wait at most `patience` seconds for all outstanding answers."""
        if self.pending:
            if self._answered is None:
                self._answered = anyio.Event()
            with anyio.move_on_after(patience):
                await self._answered.wait()
        self.settle()

    def lost(self, peer: Hashable) -> None:
        """Note a lost connection; its link may return."""
        self._told.discard(peer)

    def forget(self, peer: Hashable) -> None:
        self._told.discard(peer)
        for known in (self._names, self._voices, self._asked, self._proofs):
            known.pop(peer, None)
        self.take_proof(peer, None)
        self.held_out.pop(peer, None)

    def same(self, peers: Iterable[P]) -> tuple[tuple[P, ...], ...]:
        """Group the peers that are the same bus."""
        names = self._names
        by_name: dict[str, list[P]] = {}
        for peer in peers if len(names) > 1 else ():
            if (name := names.get(peer)) is not None:
                by_name.setdefault(name, []).append(peer)
        found = [group for each in by_name.values() for group in self._of_one_identity(each)]
        return tuple(tuple(group) for group in found if len(group) > 1)

    def _of_one_identity(self, peers: list[P]) -> list[list[P]]:
        """Split peers of one name by identity: different identities mean different buses."""
        voices = {peer: self._voices[peer] for peer in peers if peer in self._voices}
        several = set(voices.values())
        return [peers] if len(several) < 2 else [[peer for peer in peers if voices.get(peer) == one] for one in several]


def _is_token(text: Any) -> bool:
    return isinstance(text, str) and _SHORTEST <= len(text) <= _LONGEST


def _proof(name: str, nonce: str) -> str:
    key, question = (text.encode("utf-8", "surrogatepass") for text in (name, nonce))
    return hmac.new(key, question, hashlib.sha256).hexdigest()


def _is_proof(proof: str, name: str, nonce: str) -> bool:
    return hmac.compare_digest(proof.encode("utf-8", "surrogatepass"), _proof(name, nonce).encode())
