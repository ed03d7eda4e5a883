"""Loop prevention: each bus takes each publication once, in order, and no way over buses is endless.

The header ``polybus-via: <id>.<hops>.<origin>.<number>,<bus>,<bus>`` tells the way of a message:

* ``id``: random text, the same on all ways of one publication; ``-`` of a request, which has one way.
* ``hops``: bridges and tunnels on the way; `Limits.hops` is the most.
* ``origin``, ``number``: a stream of publications and the place in it. The first bus that sends one on several ways numbers
  what it sends, so that a copy that comes after a later publication of its stream is known to be late.
* The buses that it has left since, of which the first and the last are kept, `_BUSES` in all. A bus drops what names itself.

Handlers never see the header. Bad text harms only what carries it: it has no hops, and is no copy of anything.

A bus that gets a publication knows its header, and may say it elsewhere before the publication is there, or a higher number. So
both count under the subject alone: only who may publish to that very subject can take the place of what is published to it.
Numbers count, moreover, among peers of one identity alone: see `vouched`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from zlib import crc32

import anyio
from attrs import define, field

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
"""Names on the way that are kept. A longer ring ends where it began, or where a bus finds an id or a number that it knows."""
_NUMBER: Final = 18
"""Digits."""


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
        """Begin the way of a publication, at a place in a stream or in none.

        Its id is random, so that no peer can take the place of what is to come.
        """
        return cls(sources.get().urandom(8).hex(), 0, origin, number)

    @classmethod
    def read(cls, text: str) -> ViaHeader:
        """Read a header; a peer may have written anything."""
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
        """Read the header of a message that came over a wire."""
        return cls.read((message.headers or {}).get(VIA, "-"))

    @staticmethod
    def strip(message: Message) -> None:
        """Take the header off a message that has come to its goal: handlers may pass on the headers that they see."""
        message.headers = {name: value for name, value in (message.headers or {}).items() if name != VIA} or None

    def extend(self, bus: str) -> ViaHeader:
        """Add one bus that it leaves."""
        return self._replace(buses=tuple(_kept((*self.buses, bus))))

    def in_stream(self, origin: str) -> ViaHeader:
        """Rename its stream; with empty text it is in none."""
        return self._replace(origin=origin)

    def add_hops(self, more: int) -> ViaHeader:
        """Count so many bridges and tunnels more."""
        return self._replace(hops=self.hops + more) if more else self


def _kept(buses: Sequence[str]) -> Sequence[str]:
    return buses if len(buses) <= _BUSES else (*buses[:1], *buses[1 - _BUSES :])


def _count(text: str) -> int:
    return int(text) if len(text) <= _NUMBER and text.isascii() and text.isdigit() else 0


def depth_of(peer: CallingPeer) -> int:
    """Count the tunnels that the link of a peer leads through."""
    transport = peer.link.transport
    return 0 if transport is None else transport.hops


def depth_of_sender(message: Message) -> int:
    """Count the tunnels that a message has come through from its sender."""
    return 0 if message.peer is None else depth_of(party_of(message.peer))


def too_far(subject: str | int, hops: int, limit: int) -> str:
    """Explain why a message goes no further."""
    return f"{subject!r} has come through {hops} bridges and tunnels: the limit is {limit} (Limits.hops)"


def vouched(origin: str, peer: CallingPeer | None) -> str:
    """Name a stream that a peer speaks for.

    What one peer says of the streams of others shall not count against those. So a stream has another name from each identity
    that `authenticate` of this bus gave, the same wherever it has come in so. Without `authenticate`, and over links that this
    bus opened, names stay.
    """
    voice = None if peer is None or not origin else _voice(peer)
    if voice is None:
        return origin
    base, _, before = origin.partition("~")
    if before and before != voice:
        base = _short(origin)
    return f"{base}~{voice}"


def speaker(peer: CallingPeer) -> str:
    """Name who has sent something, for what is remembered of it: an identity, a network address, or "" of a link from here."""
    share = peer.link.share
    return _voice(peer) or ("" if share is None else share.address.network)


def _short(text: str) -> str:
    return hashlib.blake2s(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _voice(peer: CallingPeer) -> str | None:
    """Mark the streams of an identity: by its key, by itself where it is text or a number, or as those of this peer alone."""
    identity, key = peer.identity, peer.identity_key
    if identity is None and (key is None or peer.link.services.access.authenticate is None):
        return None  # behind a broker there is a key all the same: the client's number
    if key is not None:
        return _short(key)
    return _short(str(identity) if isinstance(identity, (str, int)) else peer.id)


@define(eq=False)
class _Memory:
    """Numbers by keys. Where there is no room for one more, the speaker with the most of them loses the older half: so nobody
    makes a bus forget what others have said."""

    _numbers: dict[tuple[str, int], tuple[int, str]] = field(factory=dict)
    """With who has said each first."""
    _said: dict[str, dict[tuple[str, int], None]] = field(factory=dict)
    """The keys of each speaker, those first of which nothing has come for longest."""

    def __len__(self) -> int:
        return len(self._numbers)

    def raise_to(self, key: tuple[str, int], number: int, speaker: str) -> bool:
        """Keep the higher number; whether that is this one."""
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


@define(eq=False)
class Deduplicator:
    """The publications that one bus knows to have passed other buses, or sends over several."""

    _bus: str
    _counters: Counters
    _number: int = 0
    _ids: _Memory = field(factory=_Memory)
    _streams: _Memory = field(factory=_Memory)
    """The last number of each stream under each subject."""

    # -- what leaves -----------------------------------------------------------------------------------------------------

    def via_of(self, message: Message) -> ViaHeader:
        """Give a publication its header: one for all the ways on which it is about to leave.

        One that has been nowhere yet leaves after all that had theirs before. Its stream is that of its subject here, since
        bridges give several subjects one name, and of what may let one publication overtake another on a wire.
        """
        known = message.shared.get(VIA)
        if known is not None:
            return ViaHeader.read(known.decode())
        sort = message.attributes.get("priority")
        if message.peer is not None:
            sort = f"{sort} relayed"  # what this bus itself publishes may wait for room meanwhile
        self._number += 1
        stream = crc32(f"{message.subject} {sort}".encode("utf-8", "surrogatepass"))
        via = ViaHeader.start(f"{self._bus}-{stream:x}", self._number).add_hops(depth_of_sender(message))
        message.shared[VIA] = str(via).encode()
        return via

    def onward(self, message: Message, via: ViaHeader | None = None) -> Message:
        """Make the copy of a publication that goes to other buses, with its header."""
        return message.with_headers({**(message.headers or {}), VIA: str((via or self.via_of(message)).extend(self._bus))})

    # -- what arrives ----------------------------------------------------------------------------------------------------

    def is_news(
        self, via: ViaHeader, subject: str | int, group: tuple[str, str | int] | None = None, *, speaker: str = ""
    ) -> bool:
        """Tell whether a publication comes for the first time, and in order; one that is late is counted as dropped.

        Each `group`, with its pattern, has a copy of its own, in no order; also of what this bus was the last to send, which an
        engine shares among all members.
        """
        if self.is_own(via) and (group is None or via.buses[-1] != self._bus):
            return False
        # Python's hash of text has a key of this process: no peer finds a subject with the hash of another.
        of_subject = canonical(subject) if isinstance(subject, str) else subject
        name = hash(of_subject if group is None else (of_subject, group))
        if not self._ids.raise_to((via.id, name), 1, speaker):
            return False
        if group is None and via.origin and not self._streams.raise_to((via.origin, name), via.number, speaker):
            self._counters.dropped += 1
            return False
        return True

    def is_own(self, via: ViaHeader) -> bool:
        """Tell whether a publication has left this very bus before."""
        return self._bus in via.buses


_SHORTEST: Final = 16
P = TypeVar("P", bound=Hashable)
"""A peer, by which facts are kept here: no more is asked of it."""


@define(eq=False)
class BusIdentities:
    """The buses at the other ends of a bus's links, and its own proof of who it is."""

    _secret: str = field(factory=lambda: sources.get().urandom(16).hex())
    changed: Callable[[], None] = lambda: None
    """Called when another answer of `same` may be right, or a peer is held out."""
    _names: dict[Hashable, str] = field(factory=dict)
    """The secrets of peers: of those who dialled what they said, of those who were dialled what their answer shows."""
    _voices: dict[Hashable, object] = field(factory=dict)
    """The identities of those who dialled, where they can be told apart."""
    _asked: dict[Hashable, str] = field(factory=dict)
    """The questions to those who were dialled."""
    _proofs: dict[Hashable, str] = field(factory=dict)
    """Their answers."""
    _told: set[Hashable] = field(factory=set)
    """Peers that have been asked on their present connection."""
    pending: dict[Hashable, None] = field(factory=dict)
    """Peers that were dialled and have not answered yet, for the first time."""
    held_out: dict[Hashable, None] = field(factory=dict)
    """Peers that are sent no publications until nothing is pending: they may be sent them on another link already."""
    _answered: anyio.Event | None = None

    def introduction(self, peer: Hashable) -> dict[str, str]:
        """Make the facts of a hello to a peer that this bus has dialled."""
        nonce = self._asked.get(peer)
        if nonce is None:
            nonce = self._asked[peer] = sources.get().urandom(8).hex()
        self._told.add(peer)
        return {"secret": self._secret, "nonce": nonce}

    def expect_answer(self, peer: Hashable) -> None:
        """Note that a hello is about to go to a peer whose link has come up."""
        if peer not in self._asked:
            self.pending[peer] = None
            if self._names:
                self.held_out[peer] = None
                self.changed()

    def has_told(self, peer: Hashable) -> bool:
        """Tell whether a peer has been told the identity of this bus."""
        return peer in self._told

    def answer(self, nonce: Any) -> dict[str, str]:
        """Make the facts of an answer to a hello."""
        return {"proof": _proof(self._secret, nonce)} if _is_token(nonce) else {}

    def take_secret(self, peer: Hashable, name: Any, voice: object = None) -> bool:
        """Learn who a peer is that dialled this bus, and tell whether that can be compared with all others already.

        `voice` is the mark of its identity; None if it has none that can be compared.
        """
        if not _is_token(name):
            self.release(peer)
        elif peer not in self._names:  # it is said once: who says something else every time makes nobody think
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
        """Take the answer of a peer that this bus dialled to a hello; None where there was none, or it is none of ours."""
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
        """Hold out a peer that has dialled this bus and that would be sent everything at once, until it has said who it is.

        Tells whether it is held out: this bus has dialled one of ours, and it might be the same.
        """
        if self._proofs:
            self.held_out[peer] = None
            self.changed()
        return bool(self._proofs)

    def release(self, peer: Hashable) -> None:
        """Hold a peer out no longer."""
        if peer in self.held_out:
            del self.held_out[peer]
            self.changed()

    def settle(self) -> None:
        """Hold nobody out any longer."""
        if self.held_out:
            self.held_out.clear()
            self.changed()
        if self._answered is not None:
            self._answered.set()
            self._answered = None

    async def settled(self, patience: float) -> None:
        """Wait until all have answered who were asked, but no longer than that."""
        if self.pending:
            if self._answered is None:
                self._answered = anyio.Event()
            with anyio.move_on_after(patience):
                await self._answered.wait()
        self.settle()

    def lost(self, peer: Hashable) -> None:
        """Note that the connection of a peer has ended; its link may come back, and with it the same bus."""
        self._told.discard(peer)

    def forget(self, peer: Hashable) -> None:
        """Forget a peer that has gone for good."""
        self._told.discard(peer)
        for known in (self._names, self._voices, self._asked, self._proofs):
            known.pop(peer, None)
        self.take_proof(peer, None)
        self.held_out.pop(peer, None)

    def same(self, peers: Iterable[P]) -> tuple[tuple[P, ...], ...]:
        """Group the peers that are one bus, for each such bus."""
        names = self._names
        by_name: dict[str, list[P]] = {}
        for peer in peers if len(names) > 1 else ():
            if (name := names.get(peer)) is not None:
                by_name.setdefault(name, []).append(peer)
        found = [group for each in by_name.values() for group in self._of_one_identity(each)]
        return tuple(tuple(group) for group in found if len(group) > 1)

    def _of_one_identity(self, peers: list[P]) -> list[list[P]]:
        """Divide peers of one name by their identities. Of several only those can be one bus that have the same."""
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
