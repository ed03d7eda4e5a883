"""The options of the protocol, and what is made from them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import ClassVar, Final, Self

from attrs import field, frozen

from ...limits import Limits
from ...plugins import Role
from .codec import JrepCodec, make_codec
from .handshake import Dialect
from .session import JrepSession
from .values.java import JavaTypes

__all__ = ["Jrep"]

_LIMITS: Final = Limits()
_NO_TYPES: Final = JavaTypes()
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "dialect": ("auto", "v3", "legacy"),
    "values": ("errai", "plain"),
    "types": ("lenient", "strict"),
}


def _known(adapter: Jrep, attribute: object, value: object) -> None:
    name: str = attribute.name  # type: ignore[attr-defined]
    if value not in _VALUES[name]:
        raise ValueError(f"jrep: {name}={value!r} is not known; it is one of {', '.join(_VALUES[name])}")


def _interval(adapter: Jrep, attribute: object, value: float) -> None:
    if not 0 <= value < 1e6:
        raise ValueError(f"jrep: heartbeat={value!r}: seconds between two signs of life, or 0 for none")


@frozen(kw_only=True)
class Jrep:
    """The J.REP protocol with its options.

    Args:
        dialect: The handshake: ``v3`` as Errai from 2.4 on, ``legacy`` as the document, ``auto`` to find out.
        values: How values are written: ``errai`` with Errai's markers, ``plain`` as bare JSON. Both are read.
        types: What becomes of Java types that are not registered: ``lenient`` keeps them as `JavaObject`, ``strict`` refuses
            them, and also members that stand twice in an object.
        heartbeat: Seconds between two Heartbeat messages; 0 sends none. A peer of ours that sends some is held to it.
        java: The application's own types.

    Raises:
        ValueError: A value is not known.
    """

    option_names: ClassVar[tuple[str, ...]] = ("dialect", "values", "types", "heartbeat")

    dialect: Dialect = field(default="auto", validator=_known)
    values: str = field(default="errai", validator=_known)
    types: str = field(default="lenient", validator=_known)
    heartbeat: float = field(default=0.0, validator=_interval)
    java: JavaTypes = field(default=_NO_TYPES)

    @property
    def name(self) -> str:
        """The word in the URL."""
        return "jrep"

    @property
    def url_options(self) -> Mapping[str, str]:
        """The options that differ from the defaults, as they stand in a URL's query."""
        chosen = {name: str(getattr(self, name)) for name in _VALUES if getattr(self, name) != _VALUES[name][0]}
        return {**chosen, "heartbeat": f"{self.heartbeat:g}"} if self.heartbeat else chosen

    @property
    def inspect_options(self) -> Mapping[str, str]:
        """Recorded payloads of all dialects are read alike."""
        return {}

    def dissect(self, frame: bytes) -> tuple[()]:
        """JSON has no fields to be shown one by one."""
        return ()

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From a URL's query.

        Raises:
            ValueError: An option or its value is not known; the text lists those that are.
        """
        unknown = sorted(set(options) - set(cls.option_names))
        if unknown:
            raise ValueError(f"jrep: unknown option {', '.join(unknown)}; known are {', '.join(cls.option_names)}")
        chosen: dict[str, object] = dict(options)
        if "heartbeat" in options:
            try:
                chosen["heartbeat"] = float(options["heartbeat"])
            except ValueError:
                raise ValueError(f"jrep: heartbeat={options['heartbeat']!r} is no number of seconds") from None
        return cls(**chosen)  # type: ignore[arg-type]

    def codec(self, limits: Limits = _LIMITS) -> JrepCodec:
        """The codec; the same object for equal values, types and limits, whatever the dialect."""
        return make_codec(limits, self.java, self.values == "plain", self.types == "strict")

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> JrepSession:
        """A session for one connection; `rng` makes the random part of ids and the session's key."""
        random_ = random.SystemRandom() if rng is None else rng
        return JrepSession(self.codec(limits), role, self.dialect, limits, random_, self.heartbeat)
