"""Handlers that nodes have announced, so that a recently handled subject is distinguished from an unknown one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field

from .subjects import covers

TOLD: Final = 1024
"""Maximum number of patterns that a node announces, and that are kept per node."""
TOLD_CHARACTERS: Final = 32 * 1024
"""Maximum length of these patterns together, in characters."""
_MOST: Final = 4 * 1024 * 1024
"""Characters kept for all present nodes, and again for departed ones."""


@define(eq=False)
class KnownHandlers:
    """The patterns that other nodes handle, in their wire form, and patterns of departed nodes.

    One object for the life of a bus, across connections to the engine.

    Args:
        remember: Seconds to remember a pattern after its last node has left.
    """

    remember: float = 0.0
    _nodes: dict[str, tuple[str, ...]] = field(factory=dict, init=False)
    _present: dict[str, set[str]] = field(factory=dict, init=False)
    _gone: dict[str, float] = field(factory=dict, init=False)
    """Patterns without a node and the time that the last one left, oldest first."""
    _wide: dict[str, None] = field(factory=dict, init=False)
    _kept: int = field(default=0, init=False)
    _kept_gone: int = field(default=0, init=False)

    @property
    def characters(self) -> int:
        return self._kept + self._kept_gone

    def told(self, node: str, patterns: Any) -> None:
        """Replace the announced patterns of a node. Input is untrusted."""
        if not isinstance(patterns, list) or not self.remember:
            return
        self._forget(node)
        kept = tuple(dict.fromkeys(_bounded(patterns)))
        size = sum(map(len, kept))
        if not kept or self._kept + size > _MOST:
            return
        self._kept += size
        self._nodes[node] = kept
        for pattern in kept:
            self._present.setdefault(pattern, set()).add(node)
            self._recall(pattern)
            if _is_wide(pattern):
                self._wide[pattern] = None

    def left(self, node: str, now: float) -> None:
        """Record that a node has left or is unreachable; patterns that only it handled are remembered for a while."""
        for pattern in self._forget(node):
            self._recall(pattern)
            self._gone[pattern] = now
            self._kept_gone += len(pattern)
            if _is_wide(pattern):
                self._wide[pattern] = None
        while self._gone and (self._kept_gone > _MOST or next(iter(self._gone.values())) + self.remember <= now):
            self._drop_oldest()

    def all_left(self, now: float) -> None:
        for node in list(self._nodes):
            self.left(node, now)

    def nodes_with(self, subject: str) -> set[str]:
        return set[str]().union(*(self._present.get(pattern, ()) for pattern in self._matching(subject)))

    def last_seen(self, subject: str, now: float) -> float | None:
        """Time that the last handler of a subject left; `now` if one is present, None if unknown."""
        times = [now if pattern in self._present else self._gone[pattern] for pattern in self._matching(subject)]
        last = max(times, default=None)
        return None if last is None or last + self.remember <= now else last

    def _matching(self, subject: str) -> list[str]:
        exact = [subject] if subject in self._present or subject in self._gone else []
        return exact + [pattern for pattern in self._wide if covers(pattern, subject)]

    def _forget(self, node: str) -> list[str]:
        orphans = list[str]()
        for pattern in self._nodes.pop(node, ()):
            self._kept -= len(pattern)
            nodes = self._present[pattern]
            nodes.discard(node)
            if not nodes:
                del self._present[pattern]
                self._wide.pop(pattern, None)
                orphans.append(pattern)
        return orphans

    def _recall(self, pattern: str) -> None:
        if self._gone.pop(pattern, None) is not None:
            self._kept_gone -= len(pattern)

    def _drop_oldest(self) -> None:
        pattern = next(iter(self._gone))
        self._recall(pattern)
        self._wide.pop(pattern, None)


def bounded_list(patterns: Iterable[str]) -> list[str]:
    """Limit patterns to the number and size that a node announces."""
    return list(_bounded(patterns))


def _bounded(patterns: Iterable[Any]) -> Iterable[str]:
    rest = TOLD_CHARACTERS
    for number, pattern in enumerate(patterns):
        if number >= TOLD:
            return
        if isinstance(pattern, str) and pattern:
            rest -= len(pattern)
            if rest < 0:
                return
            yield pattern


def _is_wide(pattern: str) -> bool:
    return not {"*", ">"}.isdisjoint(pattern.split("."))
