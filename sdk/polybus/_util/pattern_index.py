"""An index that finds the patterns matching a subject without trying each of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from msgspec import Struct, field

from ..subjects import canonical, glob_of, has_empty_token, is_pattern, match_tokens, wire_pattern

T = TypeVar("T")

_CACHE_SIZE: Final = 4096
_SHALLOW: Final = 8
"""Maximum number of tokens in a typical pattern."""
_PATTERN: Final = 300
"""Approximate size of a pattern in bytes."""
_GLOB: Final = 1000
"""Approximate size of a segment with a ``*`` among other characters."""
_DEEPER: Final = 500
"""Bytes to charge for each token beyond `_SHALLOW`, because many different shapes make lookups slow."""


def tokens_overlap(one: Sequence[str], other: Sequence[str]) -> bool:
    """Return True if a subject can match both patterns, which are given as tokens."""
    for left, right in zip(one, other, strict=False):
        if ">" in (left, right):
            return True
        if left != right and "*" not in (left, right):
            return False
    return len(one) == len(other)


_Globs: TypeAlias = tuple[tuple[int, re.Pattern[str]], ...]
"""Positions and regular expressions of the segments in a URI pattern with a ``*`` among other characters."""


class _Shape(Struct, Generic[T], eq=False):
    pick: Callable[[list[str]], Any]
    """Function that selects the tokens at the other positions."""
    patterns: dict[Any, dict[_Globs, dict[T, int]]] = {}
    """Patterns, keyed by the tokens that `pick` selects."""


def _picker(places: tuple[int, ...]) -> Callable[[list[str]], Any]:
    return itemgetter(*places) if places else lambda tokens: ()


class _Patterns(Struct, Generic[T], eq=False):
    """An index of patterns by shape. A look-up tries each shape of the subject's length, however many patterns there are.

    With a trie, a peer could make a look-up visit a huge number of nodes.
    """

    uris: bool
    whole: dict[int, dict[tuple[int, ...], _Shape[T]]] = {}
    """Patterns without ``>``, by number of tokens."""
    tails: dict[int, dict[tuple[int, ...], _Shape[T]]] = {}
    """Patterns with ``>``, by number of tokens before it."""

    def count(self, tokens: list[str], item: T, step: int) -> int:
        """Add `step` to an item's count for a pattern. Returns 1 if the item is new, -1 if it was removed, otherwise 0."""
        lengths, tokens = (self.tails, tokens[:-1]) if tokens[-1] == ">" else (self.whole, tokens)
        globs = tuple((at, glob_of(token)) for at, token in enumerate(tokens) if self.uris and _is_glob(token))
        wild = {at for at, _ in globs}
        places = tuple(at for at, token in enumerate(tokens) if token != "*" and at not in wild)
        shapes = lengths.setdefault(len(tokens), {})
        shape = shapes.setdefault(places, _Shape(_picker(places)))
        alike = shape.patterns.setdefault(picked := shape.pick(tokens), {})
        change = _count(alike.setdefault(globs, {}), item, step)
        if not alike[globs]:
            del alike[globs]
        if not alike:
            del shape.patterns[picked]
        if not shape.patterns:
            del shapes[places]
        if not shapes:
            del lengths[len(tokens)]
        return change

    def collect(self, tokens: list[str], into: dict[T, int]) -> None:
        for shape in self.whole.get(len(tokens), {}).values():
            _collect(shape, tokens, into)
        for length, shapes in self.tails.items():
            if length < len(tokens):
                for shape in shapes.values():
                    _collect(shape, tokens, into)


def _collect(shape: _Shape[T], tokens: list[str], into: dict[T, int]) -> None:
    found = shape.patterns.get(shape.pick(tokens))
    if found is not None:
        for globs, holders in found.items():
            if all(glob.fullmatch(tokens[at]) for at, glob in globs):
                into.update(holders)


class SubjectIndex(Struct, Generic[T], eq=False):
    """Maps a subject to the items with a matching pattern, without duplicates.

    The time to add or remove a pattern is proportional to its length. Results are cached in a bounded cache, so that repeated
    lookups of a subject are a dictionary access until the index changes.
    """

    _exact: dict[str | int, dict[T, int]] = {}
    _dotted: _Patterns[T] = field(default_factory=lambda: _Patterns(uris=False))
    _uris: _Patterns[T] = field(default_factory=lambda: _Patterns(uris=True))
    _cache: dict[str | int, tuple[T, ...]] = {}
    size: int = 0
    """Number of (pattern, item) pairs."""
    addresses: int = 0
    """Number of pairs with a URI pattern."""
    changed: Callable[[], None] = lambda: None
    """Called after every change."""

    def add(self, pattern: str | int, item: T) -> None:
        """Add an item under a pattern. If you add an item several times, you must remove it the same number of times."""
        self._change(pattern, item, 1)

    def remove(self, pattern: str | int, item: T) -> None:
        """Remove an item from a pattern. Unknown items are ignored."""
        self._change(pattern, item, -1)

    def match(self, subject: str | int) -> tuple[T, ...]:
        found = self._cache.get(subject)
        if found is None:
            found = self._cache_miss(subject)
        return found

    def _cache_miss(self, subject: str | int) -> tuple[T, ...]:
        key = canonical(subject) if isinstance(subject, str) else subject
        items: dict[T, int] = dict(self._exact.get(key, ()))
        if isinstance(subject, str) and not has_empty_token(subject):
            self._dotted.collect(subject.split("."), items)
        if isinstance(subject, str):
            self._uris.collect(str(key).split("/"), items)
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
            change = _count(holders, item, step)
            if not holders:
                del self._exact[key]
        elif "/" in str(pattern):
            change = self._uris.count(match_tokens(str(pattern)), item, step)
        else:
            change = self._dotted.count(str(wire_pattern(pattern)).split("."), item, step)
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


def pattern_cost(pattern: str | int) -> int:
    """Estimate the memory of a subscription to a pattern, in bytes. Deep patterns cost more, because they slow look-ups."""
    if isinstance(pattern, int):
        return _PATTERN
    tokens = pattern.split("/" if "/" in pattern else ".")
    size = _PATTERN + len(pattern)
    if is_pattern(pattern):
        size += _DEEPER * max(0, len(tokens) - _SHALLOW)
        size += _GLOB * sum(map(_is_glob, tokens)) if "/" in pattern else 0
    return size
