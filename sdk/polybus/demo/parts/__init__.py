"""The parts of the demo: one module for each protocol, listed here."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

from ..play import DemoPart, DemoRow

__all__ = ["PARTS", "all_rows", "chosen_rows"]

PARTS = ("ubre", "csb", "jrep", "uprotocol", "nested")
"""Modules of this package; each has a ``PART``."""


def all_rows() -> list[DemoRow]:
    """Every row of every part."""
    rows: list[DemoRow] = []
    for name in PARTS:
        part: DemoPart = import_module(f".{name}", __name__).PART
        rows.extend(part.rows())
    return rows


def chosen_rows(rows: Iterable[DemoRow], words: Iterable[str]) -> list[DemoRow]:
    """The rows that ``--only`` names.

    Words of one kind (transport, variant, protocol) are alternatives; the kinds narrow each other.

    Raises:
        ValueError: A word names nothing; the text lists those that do. Or nothing is left.
    """
    left = list(rows)
    kinds = [{getattr(row, kind) for row in left} for kind in ("protocol", "variant", "transport")]
    wanted = {word.strip() for word in words if word.strip()}
    unknown = wanted - set().union(*kinds)
    if unknown:
        known = ", ".join(sorted(word for kind in kinds for word in kind))
        raise ValueError(f"nothing here is called {', '.join(sorted(unknown))}; there are: {known}")
    for kind, words_of_kind in zip(("protocol", "variant", "transport"), kinds, strict=True):
        if chosen := wanted & words_of_kind:
            left = [row for row in left if getattr(row, kind) in chosen]
    if not left:
        raise ValueError(f"nothing fits {', '.join(sorted(wanted))} at once")
    return left
