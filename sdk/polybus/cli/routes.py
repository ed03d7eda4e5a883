"""Routes file of `polybus bridge`: TOML with ``[[route]]`` tables; errors name the place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from .. import Route
from ..errors import BusError
from .problems import UsageError
from .serve import imported

_KEYS = ("source", "target", "kinds", "reverse", "request", "reply", "headers")
_HEAD = re.compile(r"^[ \t]*\[\[\s*route\s*\]\]", re.M)


def text_of(path: Path, option: str) -> str:
    """Text of a file; a UsageError names the option and the file."""
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None


def read_routes(path: Path) -> list[Route]:
    """Routes of a file; a UsageError names file, line and key."""
    text = text_of(path, "--routes")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    unknown = sorted(set(document) - {"route"})
    if unknown:
        raise UsageError(f"{path}: {unknown[0]!r} is not known here; routes begin with [[route]]")
    entries = document.get("route", [])
    if not (isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries)):
        raise UsageError(
            f"{path}: no routes; each begins with [[route]], in double brackets, then source = ... and target = ..."
        )
    lines = [text.count("\n", 0, found.start()) + 1 for found in _HEAD.finditer(text)]
    known_lines: list[int | None] = [*lines] if len(lines) == len(entries) else [None] * len(entries)
    places = [_place(path, number, line) for number, line in enumerate(known_lines, 1)]
    return [_route(entry, place) for entry, place in zip(entries, places, strict=True)]


def _place(path: Path, number: int, line: int | None) -> str:
    return f"{path}, route {number}" if line is None else f"{path}, line {line} (route {number})"


def _route(entry: dict[str, Any], place: str) -> Route:
    for key in entry:
        if key not in _KEYS:
            raise UsageError(f"{place}: key {key!r} is not known; one of {', '.join(_KEYS)}")
    given = dict(entry)
    for key in ("source", "target"):
        if key not in given:
            raise UsageError(f"{place}: key {key!r} is missing")
        _check(given[key], (str, int), f"{place}: {key} is a subject, text or a number")
    _check(given.get("reverse", False), (bool,), f"{place}: reverse is true or false")
    for key in ("kinds", "headers"):
        value = given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{place}: {key} is a list of texts, not {value!r}")
    for key in ("request", "reply"):
        if key in given:
            _check(given[key], (str,), f"{place}: {key} is 'module:function'")
            try:
                name = given[key]
                given[key] = imported(name, "module:function, for example convert:to_door")[1]
                if given[key] is None:
                    raise UsageError(f"there is no {name}")
            except UsageError as error:
                raise UsageError(f"{place}, {key}: {error}") from None
    try:
        return Route(given.pop("source"), given.pop("target"), **given)
    except (BusError, ValueError, TypeError) as error:
        raise UsageError(f"{place}: {error}") from None


def _check(value: Any, kinds: tuple[type, ...], text: str) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UsageError(f"{text}, not {value!r}")
