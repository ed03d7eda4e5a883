"""Options and codec of the CSB protocol."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Self

from attrs import evolve, field, frozen

from ...body import BodyFormat
from ...errors import LocalProtocolError, RemoteProtocolError, Unsupported
from ...limits import Limits
from ...message import Message
from ...plugins import FrameField, Role
from ...plugins.tools import shown, sources
from .._shared import UrlOptions, choice, fault_in_subject
from . import wire
from .bodies import BY_NAME, FORMATS
from .reader import CsbReader, dissect, unwrap
from .session import CrowdedSession, CsbSession
from .writer import CsbWriter, choose_format

_BINARY: Final[frozenset[Literal["text", "binary"]]] = frozenset(("binary",))


@frozen(eq=False, kw_only=True)
class CsbCodec:
    """Codec with one message per frame.

    `Message.id` is ``action << 16 | message id`` of the message's request. For items, credits and ends from the receiver of an
    open it is ``~id``. `Message.peer` is the client number if there is one.
    """

    reader: CsbReader
    writer: CsbWriter
    wrapped: bool = False  # True if frames begin with a client number: between a broker and a server
    chosen: Mapping[int | str, BodyFormat] = field(factory=dict)  # Configured body formats of actions, by number and by name
    reads: frozenset[Literal["text", "binary"]] = _BINARY
    writes: Literal["text", "binary"] = "binary"
    formats: tuple[BodyFormat, ...] = FORMATS

    def format_for(self, value: Any, subject: str | int) -> BodyFormat:
        if self.chosen:
            own = self.chosen.get(subject)
            if own is not None:
                return own
        return choose_format(value)

    def decode(self, frame: bytes) -> Sequence[Message | RemoteProtocolError]:
        if not self.wrapped:
            return [self.reader.read(frame)]
        client, inner = unwrap(frame)
        message = self.reader.read(inner)
        message.peer = client
        return [message]

    def encode(self, messages: Sequence[Message]) -> bytes:
        if len(messages) != 1:
            raise Unsupported(f"a CSB frame carries one message, not {len(messages)}")
        message = messages[0]
        frame = self.writer.write(message, message.id)
        if not self.wrapped:
            return frame
        client = message.peer
        if type(client) is not int or not 0 <= client <= 0xFFFFFFFF:
            raise LocalProtocolError(f"{client!r} is not a client number: set Message.peer", protocol="csb")
        return wire.CLIENT.pack(client) + frame


_LIMITS: Final = Limits()
_MOST: Final = 64  # Maximum number of sockets in a pool


def _actions(table: Any) -> tuple[tuple[str, int], ...]:
    pairs = tuple(table.items()) if isinstance(table, Mapping) else tuple(table)
    for name, number in pairs:
        fault = fault_in_subject(name, _LIMITS.subject)
        if fault is not None or not name:
            raise ValueError(f"csb: actions: {fault or 'a name is empty'}")
        if type(number) is not int or not 0 <= number < wire.FIRST_RESERVED:
            raise ValueError(f"csb: actions: {name!r} has the number {number!r}, but numbers must be from 0 to 0xfffeffff")
    numbers = [number for _, number in pairs]
    twice = next((number for number in numbers if numbers.count(number) > 1), None)
    if twice is not None:
        names = ", ".join(name for name, number in pairs if number == twice)
        raise ValueError(f"csb: actions: {names} have the same number {twice:#010x}")
    return pairs


def _encodings(table: Any) -> tuple[tuple[int | str, str], ...]:
    pairs = tuple(table.items()) if isinstance(table, Mapping) else tuple(table)
    for action, name in pairs:
        if name not in BY_NAME:
            raise ValueError(f"csb: encodings: {name!r} for {action!r} must be one of {', '.join(BY_NAME)}")
    return pairs


def _pool(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if not 1 <= number <= _MOST:
        raise ValueError(f"csb: pool={shown(value)} must be a number of sockets from 1 to {_MOST}")
    return number


@frozen(kw_only=True)
class Csb(UrlOptions):
    """The Client Server Broker protocol with its options.

    Args:
        actions: Action numbers by name: ``{"user.login": 0x00010001}``. By convention the high 16 bits identify a module. An
            ``int`` subject needs no entry. Names without a number are sent as strings, which only polybus peers understand.
        encodings: Payload encodings by action number or name: ``binary``, ``string``, ``json``, ``urlencoded`` or ``base64``.
            By default, the encoding depends on the value's type.
        side: ``direct``, or ``broker-server`` for a server that connects to a broker and has the broker's clients as peers.
        pool: Number of sockets that `connect` opens to the broker. The broker distributes its clients among them.
        server: Id of this server. Clients select it with their ``x-csb-server`` header, and the broker also sends it facts
            about its clients.
        instance: Name that distinguishes this pool's sockets from other servers with the same id. Random by default.

    Raises:
        ValueError: If a value is invalid, or an option does not apply to this `side`.
    """

    name = "csb"
    option_names: ClassVar[tuple[str, ...]] = ("side", "pool", "server")

    actions: tuple[tuple[str, int], ...] = field(default=(), converter=_actions)
    encodings: tuple[tuple[int | str, str], ...] = field(default=(), converter=_encodings)
    side: Literal["direct", "broker-server"] = choice("direct", "broker-server")
    pool: int = field(default=1, converter=_pool)
    server: str = ""
    instance: str = field(default="", eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        if self.side == "direct" and (self.pool != 1 or self.server):
            raise ValueError("csb: pool= and server= are for a server behind a broker: set side=broker-server")
        fault = fault_in_subject(self.server, _LIMITS.id)
        if fault is not None:
            raise ValueError(f"csb: server={self.server[:40]!r}: {fault.replace('subject', 'server id')}")

    @property
    def dials(self) -> bool:
        """True for a server behind a broker, which connects instead of listening."""
        return self.side == "broker-server"

    def connections(self) -> tuple[Self, ...]:
        """Return one adapter for each socket that `connect` opens."""
        if self.pool == 1:
            return (self,)
        one = evolve(self, pool=1, instance=self.instance or sources.get().urandom(8).hex())
        return (one,) * self.pool

    def codec(self, limits: Limits = _LIMITS) -> CsbCodec:
        """Return the codec. Equal adapters with equal limits share a codec."""
        return _codec(self.actions, self.encodings, self.side == "broker-server", limits)

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Return the fields of a frame for display. The frame may be incomplete."""
        return list(dissect(frame, self.side == "broker-server", {number: name for name, number in self.actions}))

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> CsbSession:
        """Create a connection's session. Only a client can connect to a broker; otherwise both roles use the same session."""
        codec = self.codec(limits)
        if self.side == "direct":
            return CsbSession(codec, limits, faces_strangers=role == "server")
        introduction: dict[str, Any] | None = None
        if self.server:
            instance = self.instance or f"{(rng or random.SystemRandom()).getrandbits(64):016x}"
            introduction = {"v": 1, "server": self.server, "instance": instance}
        return CrowdedSession(codec, limits, introduction)


@lru_cache(maxsize=64)
def _codec(
    actions: tuple[tuple[str, int], ...], encodings: tuple[tuple[int | str, str], ...], wrapped: bool, limits: Limits
) -> CsbCodec:
    table = dict(actions)
    chosen = {action: BY_NAME[name] for action, name in encodings}
    # Each action appears under its number and its name, because the bus may use either.
    for name, number in actions:
        for one, other in ((name, number), (number, name)):
            if one in chosen:
                chosen.setdefault(other, chosen[one])
    reader = CsbReader(limits, {number: name for name, number in actions})
    return CsbCodec(reader=reader, writer=CsbWriter(limits, table), wrapped=wrapped, chosen=chosen)
