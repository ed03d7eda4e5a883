"""Identity of buses: peers that are one and the same bus, as two buses may have dialled each other, or one the other twice.

A publication that goes to a bus on several links carries an id there, and is taken once (see `_core.pubsub.relay`). Hellos tell
which peers are one bus:

* To a bus that it dials, a bus says a secret of its own, the same on all its links, before it subscribes there.
* With it goes a question. The answer is made of the secret of the one that answers: it can be compared with secrets that were
  said, and tells nobody what that secret is.

Who dials in learns no secret, so it can neither pass for another bus nor come to know the ids of what goes to one: each bus has
ids of its own. Whatever a peer says of itself has effect on what it is sent alone: with an id or without. Only a server that a
bus has dialled itself knows its secret. It could say it to a third bus, and learn there under which ids publications go to the
first; so peers to which `authenticate` has given different identities are never taken for one bus.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Hashable, Iterable
from typing import Any, Final, TypeVar

import anyio
from attrs import define, field

from ..._util.sources import sources

_SHORTEST: Final = 16
_LONGEST: Final = 64
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
