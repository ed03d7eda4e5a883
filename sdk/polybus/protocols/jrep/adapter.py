"""Options of the J.REP protocol."""

from __future__ import annotations

import random
from typing import ClassVar, Final

from attrs import field, frozen

from ...limits import Limits
from ...plugins import Role
from .._options import UrlOptions, choice
from .codec import JrepCodec, make_codec
from .handshake import Dialect
from .session import JrepSession
from .values.java import JavaTypes

_LIMITS: Final = Limits()
_NO_TYPES: Final = JavaTypes()


def _interval(value: object) -> float:
    try:
        seconds = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ValueError(f"jrep: heartbeat={value!r} is no number of seconds") from None
    if not 0 <= seconds < 1e6:
        raise ValueError(f"jrep: heartbeat={value!r}: seconds between two signs of life, or 0 for none")
    return seconds


@frozen(kw_only=True)
class Jrep(UrlOptions):
    """The J.REP protocol with its options.

    Args:
        dialect: Form of the handshake: ``v3`` as in Errai since 2.4, ``legacy`` as in the document, or ``auto`` to detect it.
        values: How values are written: ``errai`` adds Errai's markers, ``plain`` writes bare JSON. Both forms can be read.
        types: What to do with unregistered Java types: ``lenient`` reads them as `JavaObject`. ``strict`` refuses them, and
            also refuses an object with duplicate members.
        heartbeat: Seconds between two Heartbeat messages; 0 for none. A polybus peer with a heartbeat must keep to it.
        java: The Java types that the application uses.

    Raises:
        ValueError: A value is invalid.
    """

    name = "jrep"
    option_names: ClassVar[tuple[str, ...]] = ("dialect", "values", "types", "heartbeat")

    dialect: Dialect = choice("auto", "v3", "legacy")
    values: str = choice("errai", "plain")
    types: str = choice("lenient", "strict")
    heartbeat: float = field(default=0.0, converter=_interval)
    java: JavaTypes = field(default=_NO_TYPES)

    def codec(self, limits: Limits = _LIMITS) -> JrepCodec:
        """Return the codec. Adapters with equal values, types and limits share one."""
        return make_codec(limits, self.java, self.values == "plain", self.types == "strict")

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> JrepSession:
        """Create the session for one connection. `rng` generates the random part of ids and the session key."""
        random_ = random.SystemRandom() if rng is None else rng
        return JrepSession(self.codec(limits), role, self.dialect, limits, random_, self.heartbeat)
