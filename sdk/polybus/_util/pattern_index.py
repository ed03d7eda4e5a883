"""An index of patterns: finds all items for a subject without looking at each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from attrs import define, field

from ..subjects import canonical, glob_of, has_empty_token, is_pattern, match_tokens, wire_pattern

T = TypeVar("T")

_CACHE_SIZE: Final = 4096
_SHALLOW: Final = 8
"""Tokens that patterns usually have at the most."""
_PATTERN: Final = 300
_NODE: Final = 500
"""Bytes that a pattern, and a node of it, cost roughly."""


def tokens_overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Tell whether two patterns, as their tokens, have a subject in common."""
    for left, right in zip(one, other, strict=False):
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return len(one) == len(other)


@define(eq=False, weakref_slot=False)
class _Node(Generic[T]):
    children: dict[str, _Node[T]] = field(factory=dict)
    globs: int = 0
    """The number of children that are segments with a ``*`` in them."""
    here: dict[T, int] = field(factory=dict)
    rest: dict[T, int] = field(factory=dict)

    @property
    def empty(self) -> bool:
        return not (self.children or self.here or self.rest)


@define(eq=False)
class SubjectIndex(Generic[T]):
    """Maps a subject to all items whose pattern matches, each once. A trie, with a bounded memory of recent answers.

    Adding and removing cost the length of the pattern; a look-up of a subject seen since the last change is one dict access.
    """

    _exact: dict[str | int, dict[T, int]] = field(factory=dict)
    _root: _Node[T] = field(factory=lambda: _Node())
    _uris: _Node[T] = field(factory=lambda: _Node())
    _cache: dict[str | int, tuple[T, ...]] = field(factory=dict)
    size: int = 0
    """The number of (pattern, item) pairs in it."""
    addresses: int = 0
    """The number of those that are addresses, or patterns of such."""
    changed: Callable[[], None] = lambda: None
    """Called after every change."""

    def add(self, pattern: str | int, item: T) -> None:
        """Count one more interest of `item` in `pattern`."""
        self._change(pattern, item, 1)

    def remove(self, pattern: str | int, item: T) -> None:
        """Take one interest back; unknown ones are ignored."""
        self._change(pattern, item, -1)

    def match(self, subject: str | int) -> tuple[T, ...]:
        """Find all items whose pattern matches."""
        found = self._cache.get(subject)
        if found is None:
            found = self._cache_miss(subject)
        return found

    def _cache_miss(self, subject: str | int) -> tuple[T, ...]:
        key = canonical(subject) if isinstance(subject, str) else subject
        items: dict[T, int] = dict(self._exact.get(key, ()))
        if isinstance(subject, str) and not self._root.empty and not has_empty_token(subject):
            _collect(self._root, subject.split("."), 0, items)
        if isinstance(subject, str) and not self._uris.empty:
            _collect(self._uris, str(key).split("/"), 0, items)
        if len(self._cache) >= _CACHE_SIZE:
            self._cache.clear()
        found = self._cache[subject] = tuple(items)
        return found

    def _change(self, pattern: str | int, item: T, step: int) -> None:
        if self._cache:
            self._cache.clear()
        self.changed()
        if not is_pattern(pattern):
            key = canonical(pattern) if isinstance(pattern, str) else pattern
            holders = self._exact.setdefault(key, {})
            self._counted(pattern, _count(holders, item, step))
            if not holders:
                del self._exact[key]
            return
        uri = "/" in str(pattern)
        tokens = match_tokens(str(pattern)) if uri else str(wire_pattern(pattern)).split(".")
        path = [self._uris if uri else self._root]
        tail = tokens[-1] == ">"
        for token in tokens[:-1] if tail else tokens:
            if token not in path[-1].children:
                path[-1].globs += uri and _is_glob(token)
            path.append(path[-1].children.setdefault(token, _Node()))
        self._counted(pattern, _count(path[-1].rest if tail else path[-1].here, item, step))
        for parent, token in zip(reversed(path[:-1]), reversed(tokens[: len(path) - 1]), strict=True):
            if not parent.children[token].empty:
                break
            del parent.children[token]
            parent.globs -= uri and _is_glob(token)

    def _counted(self, pattern: str | int, change: int) -> None:
        self.size += change
        if isinstance(pattern, str) and "/" in pattern:
            self.addresses += change


def _is_glob(token: str) -> bool:
    return "*" in token and token != "*"


def _count(holders: dict[T, int], item: T, step: int) -> int:
    before = holders.get(item, 0)
    after = before + step
    if after > 0:
        holders[item] = after
    else:
        holders.pop(item, None)
    return (after > 0) - (before > 0)


def _collect(node: _Node[T], tokens: list[str], at: int, into: dict[T, int]) -> None:
    if at < len(tokens):
        into.update(node.rest)
        for token in (tokens[at], "*"):
            child = node.children.get(token)
            if child is not None:
                _collect(child, tokens, at + 1, into)
        if node.globs:
            for token, child in node.children.items():
                if _is_glob(token) and glob_of(token).fullmatch(tokens[at]):
                    _collect(child, tokens, at + 1, into)
    else:
        into.update(node.here)


def pattern_cost(pattern: str | int) -> int:
    """Estimate the bytes that one more subscription to a pattern costs a bus.

    Every wildcard pattern has a node for each token, but those of peers that want the same are shared; only what is deeper than
    patterns usually are is charged as if it were not.
    """
    if isinstance(pattern, int):
        return _PATTERN
    tokens = pattern.count("/" if "/" in pattern else ".") + 1
    return _PATTERN + len(pattern) + (_NODE * (tokens - _SHALLOW) if tokens > _SHALLOW and is_pattern(pattern) else 0)
