"""Names of subjects. A subject has a single name, even if protocols write it differently."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from polybus.capture.schema import EXCHANGES
from polybus.protocols.up.uuris import UUriError, parse_uuri
from polybus.protocols.uprotocol.adapter import DEFAULT_ENTITY
from polybus.protocols.uprotocol.names import MESSAGE, decode_name
from polybus.subjects import matches

from ..engine import Engine
from .views import USERS

if TYPE_CHECKING:
    from polybus import Route

_OF_BUSES: Final = re.compile(rf"{DEFAULT_ENTITY}/(?:rpc\.(?P<method>[^/#]+)|(?P<topic>[^/#]+)#{MESSAGE})")
_PLACE: Final = re.compile(r"\{(\w+)\}")


@attrs.frozen
class Names:
    """Tables of names, and the routes of bridges.

    Args:
        table: Maps names to numbers or addresses, as for ``Up(names=...)``. Numbers may also be CSB actions.
        routes: Routes of a bridge. Subjects on its other side get their names on this side.
    """

    table: Mapping[str, Any] = attrs.field(factory=dict)
    routes: tuple[Route, ...] = ()
    _spelled: dict[str, str] = attrs.field(init=False, factory=dict)
    _back: list[Callable[[str], str | None]] = attrs.field(init=False, factory=list)

    def __attrs_post_init__(self) -> None:
        for name, given in self.table.items():
            for one in given if isinstance(given, (list, tuple)) else (given,):
                self._spelled.update(dict.fromkeys(_spellings(one), name))
        self._back.extend(filter(None, map(_inverse, self.routes)))

    def __str__(self) -> str:
        return f"{sorted(self._spelled.items())} {[(route.source, route.target) for route in self.routes]}" if self else ""

    def __bool__(self) -> bool:
        return bool(self._spelled or self._back)

    def of(self, subject: str) -> str:
        """Return the name of a subject. If it has no other name, return the subject."""
        name = self._spelled.get(subject) or self._by_resource(subject) or _plain(subject)
        return next((found for back in self._back if (found := back(name))), name)

    def renamed(self, subjects: Iterable[str]) -> dict[str, str]:
        some = subjects if self else (one for one in subjects if one.startswith(DEFAULT_ENTITY))  # quick where all are plain
        return {subject: name for subject in some if (name := self.of(subject)) != subject}

    def _by_resource(self, subject: str) -> str | None:
        if not self._spelled or "/" not in subject:
            return None
        try:
            uri = parse_uuri(subject)
        except UUriError:
            return None
        return self._spelled.get(str(uri)) or self._spelled.get(f"{uri.resource:X}")


def by_name(engine: Engine, exchanges: Any, names: Mapping[str, str]) -> Any:
    """Return the exchanges of users with names as subjects, and the original subjects in the ``address`` column."""
    listed = ", ".join(f"found.{name}" for name in (*EXCHANGES.names, "place") if name != "subject")
    text = f"""
        select /*+ broadcast(names) */ {listed}, coalesce(names.name, found.subject) as subject, found.subject as address
        from {{found}} as found left join {{names}} as names on found.subject = names.address
        where {USERS.replace("subject", "found.subject")}
    """
    given = pa.table({"address": pa.array(names, pa.string()), "name": pa.array(names.values(), pa.string())})
    return engine.sql(text, found=exchanges, names=engine.hand(given))


def is_for(pattern: str, subject: str) -> bool:
    return pattern == subject or matches(pattern, subject)


def _plain(subject: str) -> str:
    found = _OF_BUSES.fullmatch(subject)
    return (found and decode_name(found["method"] or found["topic"])) or subject


def _spellings(given: Any) -> Iterator[str]:
    if isinstance(given, int):
        yield from (f"{given:X}", f"0x{given:08X}")
    else:
        yield str(given)
        try:
            yield str(parse_uuri(str(given)))
        except UUriError:
            return


def _inverse(route: Route) -> Callable[[str], str | None] | None:
    """Return a function that maps a route's target back to its source, or `None` if the route cannot be reversed."""
    source, target = (f"0x{one:08X}" if isinstance(one, int) else one for one in (route.source, route.target))
    stars, parts = count(1), list[str]()
    for token in re.split(r"([./])", source):
        parts.append(f"{{{next(stars)}}}" if token == "*" else "{rest}" if token == ">" else token)
    template = "".join(parts)
    if not set(_PLACE.findall(template)) <= set(_PLACE.findall(target)):
        return None
    pieces = enumerate(_PLACE.split(target))
    form = re.compile("".join(_group(piece) if number % 2 else re.escape(piece) for number, piece in pieces))

    def back(name: str) -> str | None:
        fits = form.fullmatch(name)
        return fits and _PLACE.sub(lambda place: fits[f"p{place[1]}"], template)

    return back


def _group(name: str) -> str:
    return f"(?P<p{name}>{'.+' if name == 'rest' else '[^./]+'})"
