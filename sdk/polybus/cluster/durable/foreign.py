"""External streams: streams of a NATS network behind a link, read and published to like stores.

This bus never creates or changes them, and publishes only what the application publishes. A durable name is a consumer of such
a stream, created unless it exists.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field

from ...errors import LocalProtocolError
from ...integrations import parts_of
from ...plugins.tools import tokens_overlap
from ...protocols.nats.checks import local_pattern
from .consumers import Consumers, StoreReaders, find_streams
from .dead_letters import OVER, Burial, Death, Graveyard, LetterPlace, Letters, LetterWriter
from .jetstream import Advice, JetStream, JetStreamError, StoredPublishing

if TYPE_CHECKING:
    from ... import Bus
    from ...integrations import Link, PeerParty, Services
    from ...message import Message
    from ...plugins import NodeJoined, NodeLeft

logger: logging.Logger = logging.getLogger("polybus.cluster")

_EACH: Final = 2.0
"""Seconds until an unconfirmed publication is sent again."""
_KNOWN: Final = 30.0
"""Seconds until it is given up: streams remember an id for two minutes, unless their owner sets less."""
_PATIENCE: Final = 5.0
_LONGEST_REASON: Final = 200
OF_OTHERS: Final = Advice(
    keeps_nothing=(
        "this NATS server keeps nothing: durable=, start= and id= need JetStream (nats-server -js -sd FOLDER), for the account "
        "of this user, too"
    ),
    no_store="Ask its owner for a stream with that subject; for your own programs' publications use a Store of a cluster",
    gone="{!r} is not stored: no stream of this NATS network keeps it, or nothing subscribes to that subject",
    full="the stream is full (a limit of its owner), or its server or account has no room",
    forbidden=(
        "a reader of a stream publishes to $JS.API.STREAM.NAMES, $JS.API.STREAM.INFO.<stream>, "
        "$JS.API.CONSUMER.INFO.<stream>.*, $JS.API.CONSUMER.MSG.NEXT.<stream>.* and $JS.ACK.<stream>.>; to create its "
        "consumer also to $JS.API.CONSUMER.DURABLE.CREATE.<stream>.*, with start= and no durable= to "
        "$JS.API.CONSUMER.CREATE.<stream>.> and $JS.API.CONSUMER.DELETE.<stream>.*; with dead_letters= "
        "also to $JS.API.STREAM.INFO of the stream of letters, and to their subjects"
    ),
)


@define(eq=False)
class NoLetters:
    """Tells the engine why a publication has failed, and keeps no letter. Implements `dead_letters.Graveyard`."""

    _jetstream: JetStream

    place = None

    async def prepare(self, stream: str) -> None:
        """Do nothing: there is no store."""

    async def bury(self, message: Message, durable: str, death: Death, now: float, *, ordered: bool) -> Burial:
        """Return the reason, and where the publication is."""
        note = f"; it is not redelivered, and without dead_letters= no letter is kept: it was {death.number} of {death.stream}"
        word = f"{OVER} {' '.join(death.reason.split())[:_LONGEST_REASON]}" if self._jetstream.hears_why else OVER
        return Burial(note, word)


@define(eq=False)
class ForeignLetters:
    """Keeps dead letters in a stream of the network's owners. Implements `dead_letters.Graveyard`."""

    _jetstream: JetStream
    _writer: LetterWriter
    place: tuple[str, str] | None = field(default=None, init=False)

    async def prepare(self, stream: str) -> None:
        """Check that such a stream exists.

        Raises:
            LocalProtocolError: None exists.
            Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
        """
        prefix = self._writer.prefix
        self.place = await _stream_of_letters(self._jetstream, prefix), prefix

    async def bury(self, message: Message, durable: str, death: Death, now: float, *, ordered: bool) -> Burial:
        """Return when a dead letter is stored.

        Raises:
            BusError: As `LetterWriter.write`.
        """
        whole = await self._writer.write(message, durable, death, now)
        note = "" if whole else f"; its letter is incomplete: it was {death.number} of {death.stream}"
        return Burial(note, OVER)


async def _stream_of_letters(jetstream: JetStream, prefix: str) -> str:
    """Return the name of the owners' stream for dead letters.

    Raises:
        LocalProtocolError: None exists.
        BusError: As `JetStream.ask`.
    """
    pattern = f"{prefix}.>"
    try:
        found = await find_streams(jetstream, pattern)
    except JetStreamError as error:
        raise LocalProtocolError(f"the stream of {pattern!r} cannot be found: the NATS server says: {error.text}") from None
    if not found.whole:
        raise LocalProtocolError(
            f"dead_letters={prefix!r}: no stream of this NATS network keeps all of {pattern!r}: ask its owner for one, or "
            "leave the option out"
        )
    return found.whole


async def letters_of(bus: Bus) -> Letters:
    """Return the dead letters of the stream that ``dead_letters=`` of the bus's link names.

    Raises:
        LocalProtocolError: The stream does not exist.
    """
    parts = parts_of(bus)
    (peer,), services = parts.peers, parts.services
    adapter: Any = peer.link.adapter
    jetstream = JetStream(peer.link, _PATIENCE, OF_OTHERS, adapter.domain)
    publishing = StoredPublishing(services, peer.link, jetstream, "", _EACH, _KNOWN)
    stream = await _stream_of_letters(jetstream, adapter.dead_letters)
    place = LetterPlace(f"the stream {stream!r}", stream, adapter.dead_letters, str, ours=False)
    return Letters(place, jetstream, publishing, services.running.time)


def publishing_of(bus: Bus) -> StoredPublishing:
    parts = parts_of(bus)
    (peer,) = parts.peers
    adapter: Any = peer.link.adapter
    jetstream = JetStream(peer.link, _PATIENCE, OF_OTHERS, adapter.domain)
    return StoredPublishing(parts.services, peer.link, jetstream, "", _EACH, _KNOWN)


@define(eq=False)
class ForeignStreams:
    """The streams behind one link. Implements `plugins.extensions.LinkReader` and `Keeper`, and `jetstream.EngineLink`."""

    _services: Services
    _link: Link
    readers: StoreReaders = field(init=False)
    _publishing: StoredPublishing = field(init=False)
    _letters: str = field(init=False)
    """First tokens of the subjects of dead letters; empty if none are kept."""

    def __attrs_post_init__(self) -> None:
        adapter: Any = self._link.adapter
        services, jetstream = self._services, JetStream(self, _PATIENCE, OF_OTHERS, adapter.domain)
        self._publishing = publishing = StoredPublishing(services, self, jetstream, "", _EACH, _KNOWN)
        self._letters = adapter.dead_letters
        graveyard: Graveyard = NoLetters(jetstream)
        if self._letters:
            graveyard = ForeignLetters(jetstream, LetterWriter(self._letters, publishing))
        self.readers = StoreReaders(services, self._published, Consumers(jetstream), graveyard, self._engine)

    def _published(self, pattern: str | int) -> str:
        """Return the wire form of a pattern to read.

        Raises:
            LocalProtocolError, Unsupported: It cannot be written, or matches its own dead letters.
        """
        subject = local_pattern(pattern, self._services.limits.subject)
        if self._letters and tokens_overlap(subject.split("."), [*self._letters.split("."), ">"]):
            raise LocalProtocolError(
                f"stored publications of {subject!r}: dead_letters={self._letters!r} is among them, so a failed dead "
                "letter would make another one: choose a prefix that the pattern does not match"
            )
        return subject

    @property
    def peer(self) -> PeerParty | None:
        peer: PeerParty | None = self._link.peer
        return peer

    def _engine(self) -> PeerParty:
        peer = self.peer
        assert peer is not None  # these are made for a link that was up
        return peer

    # -- nodes: such a network has none
    # -----------------------------------------------------------------------------------------

    def named(self, node: str) -> None:
        """Do nothing."""

    def node_event(self, event: NodeJoined | NodeLeft) -> None:
        """Do nothing."""

    # -- publications ------------------------------------------------------------------------------------------------------

    def receive(self, message: Message, now: float) -> None:
        to: Any = message.peer
        message.peer = self._engine().public
        self._services.counters.received += 1
        self.readers.receive(message, to)

    async def publish(self, message: Message, id: str | None, deadline: float) -> None:
        """Return when a stream has stored a publication.

        Raises:
            BusError: As `StoredPublishing.publish`.
        """
        await self._publishing.publish(message, id, deadline)
