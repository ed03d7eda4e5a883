"""The options of the protocol, and what is made from them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Literal, Self

from attrs import evolve, field, frozen

from ...limits import Limits
from ...plugins import FrameField, Role
from ...plugins.tools import sources
from .._options import UrlOptions, choice
from .._rules import fault_in_subject
from . import wire
from .bodies import BY_NAME
from .codec import CsbCodec
from .dissect import dissect
from .reader import CsbReader
from .session import CrowdedSession, CsbSession
from .writer import CsbWriter

_LIMITS: Final = Limits()
_MOST: Final = 64
"""Sockets of a pool."""


def _actions(table: Any) -> tuple[tuple[str, int], ...]:
    pairs = tuple(table.items()) if isinstance(table, Mapping) else tuple(table)
    for name, number in pairs:
        fault = fault_in_subject(name, _LIMITS.subject)
        if fault is not None or not name:
            raise ValueError(f"csb: actions: {fault or 'a name is empty'}")
        if type(number) is not int or not 0 <= number < wire.FIRST_RESERVED:
            raise ValueError(f"csb: actions: {name!r} has the number {number!r}; numbers go from 0 to 0xfffeffff")
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
            raise ValueError(f"csb: encodings: {name!r} for {action!r} is not known; it is one of {', '.join(BY_NAME)}")
    return pairs


def _pool(value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError):
        number = 0
    if not 1 <= number <= _MOST:
        raise ValueError(f"csb: pool={value!r}: a number of sockets from 1 to {_MOST}")
    return number


@frozen(kw_only=True)
class Csb(UrlOptions):
    """The Client Server Broker protocol with its options.

    Args:
        actions: Numbers of names: ``{"user.login": 0x00010001}``. By convention the high 16 bits are a module. Subjects that
            are ``int`` need no table; names without a number travel as text, which only a polybus reads.
        encodings: Payload encodings of actions, by number or name, where they are not chosen by the value: ``binary``,
            ``string``, ``json``, ``urlencoded`` or ``base64``.
        side: ``direct``, or ``broker-server`` for a server that is connected to a broker: the clients are its peers.
        pool: How many sockets `connect` opens to the broker. The broker spreads the clients over them.
        server: The id that clients choose this server by, with the header ``x-csb-server``; also makes the broker say who its
            clients are.
        instance: Tells the sockets of one pool from another server with the same id; made up where it is needed.

    Raises:
        ValueError: A value is not known, or an option means nothing on this side.
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
        """True if a server of this side connects, and does not listen: behind a broker."""
        return self.side == "broker-server"

    def connections(self) -> tuple[Self, ...]:
        """The adapters of the connections that one `connect` opens: one, or the sockets of the pool."""
        if self.pool == 1:
            return (self,)
        one = evolve(self, pool=1, instance=self.instance or sources.get().urandom(8).hex())
        return (one,) * self.pool

    def codec(self, limits: Limits = _LIMITS) -> CsbCodec:
        """The codec; the same object for equal adapter and limits."""
        return _codec(self.actions, self.encodings, self.side == "broker-server", limits)

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """The fields of a frame, one by one; of one that is cut off, those that are there."""
        return list(dissect(frame, self.side == "broker-server", {number: name for name, number in self.actions}))

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> CsbSession:
        """A session for one connection. Both roles speak alike, except that of two only the client dials a broker."""
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
    # By number or by name: the bus may use either.
    for name, number in actions:
        for one, other in ((name, number), (number, name)):
            if one in chosen:
                chosen.setdefault(other, chosen[one])
    reader = CsbReader(limits, {number: name for name, number in actions})
    return CsbCodec(reader=reader, writer=CsbWriter(limits, table), wrapped=wrapped, chosen=chosen)
