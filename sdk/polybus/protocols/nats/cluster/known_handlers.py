"""The handlers that nodes have told of: whether a subject that nobody handles has been handled lately."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from attrs import define, field

from .subjects import covers

TOLD: Final = 1024
"""Patterns that a node tells of at the most, and that are kept of it."""
TOLD_CHARACTERS: Final = 32 * 1024
"""Characters of these patterns, together."""
_MOST: Final = 4 * 1024 * 1024
"""Characters that are kept of all nodes, and as many of those that are gone."""


@define(eq=False)
class KnownHandlers:
    """The patterns that the other nodes handle, as they stand on the wire, and those whose last node has gone.

    One for the life of a bus: it outlasts the connections to the engine.

    Args:
        remember: Seconds for which a pattern is remembered whose last node has gone.
    """

    remember: float = 0.0
    _nodes: dict[str, tuple[str, ...]] = field(factory=dict, init=False)
    _present: dict[str, set[str]] = field(factory=dict, init=False)
    """Nodes by pattern."""
    _gone: dict[str, float] = field(factory=dict, init=False)
    """Patterns that no node has any more, and since when; the oldest first."""
    _wide: dict[str, None] = field(factory=dict, init=False)
    """Patterns of both that have wildcards."""
    _kept: int = field(default=0, init=False)
    """Characters of what the nodes have told."""
    _kept_gone: int = field(default=0, init=False)

    @property
    def characters(self) -> int:
        """Characters of all patterns that are kept."""
        return self._kept + self._kept_gone

    def told(self, node: str, patterns: Any) -> None:
        """Take note of what a node handles, in place of what it told before; any node may tell anything."""
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
        """Take note that a node has gone, or cannot be reached: what it alone has handled is remembered for a while."""
        for pattern in self._forget(node):
            self._recall(pattern)
            self._gone[pattern] = now
            self._kept_gone += len(pattern)
            if _is_wide(pattern):
                self._wide[pattern] = None
        while self._gone and (self._kept_gone > _MOST or next(iter(self._gone.values())) + self.remember <= now):
            self._drop_oldest()

    def all_left(self, now: float) -> None:
        """Take note that the engine is gone, and with it all nodes."""
        for node in list(self._nodes):
            self.left(node, now)

    def nodes_with(self, subject: str) -> set[str]:
        """Find the nodes that have told of a handler of a subject."""
        return set[str]().union(*(self._present.get(pattern, ()) for pattern in self._matching(subject)))

    def last_seen(self, subject: str, now: float) -> float | None:
        """Find when the last handler of a subject went; `now` where a node has one still, None where it is not known."""
        times = [now if pattern in self._present else self._gone[pattern] for pattern in self._matching(subject)]
        last = max(times, default=None)
        return None if last is None or last + self.remember <= now else last

    def _matching(self, subject: str) -> list[str]:
        exact = [subject] if subject in self._present or subject in self._gone else []
        return exact + [pattern for pattern in self._wide if covers(pattern, subject)]

    def _forget(self, node: str) -> list[str]:
        """Forget a node. Gives the patterns that no other has."""
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
        """Take a pattern from those that are gone."""
        if self._gone.pop(pattern, None) is not None:
            self._kept_gone -= len(pattern)

    def _drop_oldest(self) -> None:
        pattern = next(iter(self._gone))
        self._recall(pattern)
        self._wide.pop(pattern, None)


def bounded_list(patterns: Iterable[str]) -> list[str]:
    """As many patterns as a node tells of."""
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
