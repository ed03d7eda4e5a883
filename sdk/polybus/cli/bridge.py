"""`polybus bridge` and its routes file, a TOML file with ``[[route]]`` tables. Errors in the file include the line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import anyio

from .. import Bus, Peer, Route
from .. import bridge as join
from ..errors import BusError
from ..integrations import parts_of
from ..plugins.registry import with_tls
from ..plugins.tools import without_secrets
from .options import Ca, Header, Insecure, Key, OwnCert, Wait, argument, client_tls, dialling, option, server_tls
from .problems import UsageError, unwrapped
from .process import announce, ending, race, start_log
from .serve import imported

_KEYS = ("source", "target", "kinds", "reverse", "request", "reply", "headers")
_Side: TypeAlias = tuple[str, str, dict[str, Any]]
"""Name, URL, and arguments of `Bus.serve` or `Bus.connect`."""
_HEAD = re.compile(r"^[ \t]*\[\[\s*route\s*\]\]", re.M)


def bridge(
    left: Annotated[str, argument("LEFT", "URL of one side, for example ubre+ws://127.0.0.1:8000/bus.")],
    right: Annotated[str, argument("RIGHT", "URL of the other side, for example csb+tcp://127.0.0.1:9000.")],
    routes: Annotated[Path, option("FILE", "Routes file: TOML with a [[route]] table for each source and target.")],
    serve: Annotated[
        list[str] | None,
        option("SIDE", "Serve this side, left or right, at its URL instead of connecting to it. Can be repeated."),
    ] = None,
    insecure: Insecure = False,
    header: Header = None,
    ca: Ca = None,
    cert: OwnCert = None,
    key: Key = None,
    wait: Wait = 0.0,
) -> None:
    """Forward requests and publications between two buses until SIGINT or SIGTERM.

    Callers have to reach the bridge, so serve their side (--serve left), and let the bridge connect to the side with the
    handlers.
    """
    start_log()
    served = set(serve or ())
    if unknown := sorted(served - {"left", "right"}):
        raise UsageError(f"--serve {unknown[0]!r}: use left or right")
    if ca is not None and len(served) == 2:
        raise UsageError("--ca is for connections that the bridge opens, but it serves both sides")
    secure, found = with_tls((left, right)), read_routes(routes)
    sides: list[_Side] = []
    for name, url in (("left", left), ("right", right)):
        if name in served:
            options = {"insecure": insecure, "tls": server_tls(cert, key) if url in secure else None}
        else:
            options = dialling(header, client_tls(ca, cert, key) if url in secure else None, wait)
        sides.append((name, url, options))
    unwrapped(lambda: anyio.run(_run, sides, served, found))


async def _run(sides: list[_Side], served: set[str], routes: list[Route]) -> None:
    async def enter(bus: Bus, side: str, url: str, options: dict[str, Any]) -> str:
        if side in served:
            listener = await stack.enter_async_context(bus.serve(url, **options))
            return f"{side} serves {listener.url}"
        opened[bus] = await stack.enter_async_context(bus.connect(url, **options))
        return without_secrets(f"{side} is connected to {url}")

    buses = Bus(), Bus()
    opened: dict[Bus, Peer] = {}
    with ending() as signalled:
        async with anyio.create_task_group() as leaving, AsyncExitStack() as stack:
            stack.callback(leaving.cancel_scope.cancel)  # after everything else
            said = [await enter(bus, *side) for bus, side in zip(buses, sides, strict=True)]
            joined = await stack.enter_async_context(join(*buses, routes=routes))
            announce("\n".join(said))
            await race(signalled, *(partial(_while_there, bus, peer) for bus, peer in opened.items()))
            leaving.start_soon(_cut_by_a_second, signalled, joined)


async def _cut_by_a_second(signalled: Callable[[], Awaitable[None]], joined: Any) -> None:
    """Stop immediately on a second signal. The first signal lets calls finish."""
    await signalled()
    joined.hurry()
    await joined.left.aclose()
    await joined.right.aclose()


async def _while_there(bus: Bus, peer: Peer) -> None:
    """Raise the reason when a link is lost permanently, because a bridge needs both sides."""
    raise await parts_of(bus).gone(peer)


# -- the routes file ---------------------------------------------------------------------------------------------------------


def text_of(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors on Windows write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option} {path}: {getattr(error, 'strerror', None) or error}") from None


def read_routes(path: Path) -> list[Route]:
    """Read a routes file. A `UsageError` contains the file, line and key."""
    text = text_of(path, "--routes")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: {error}") from None
    unknown = sorted(set(document) - {"route"})
    if unknown:
        raise UsageError(f"{path}: unknown key {unknown[0]!r}; each route starts with [[route]]")
    entries = document.get("route", [])
    if not (isinstance(entries, list) and entries and all(isinstance(entry, dict) for entry in entries)):
        raise UsageError(
            f"{path}: no routes; each starts with [[route]], in double brackets, followed by source = ... and target = ..."
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
            raise UsageError(f"{place}: unknown key {key!r}; use one of {', '.join(_KEYS)}")
    given = dict(entry)
    for key in ("source", "target"):
        if key not in given:
            raise UsageError(f"{place}: missing key {key!r}")
        _check(given[key], (str, int), f"{place}: {key} must be a string or a number")
    _check(given.get("reverse", False), (bool,), f"{place}: reverse must be true or false")
    for key in ("kinds", "headers"):
        value = given.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise UsageError(f"{place}: {key} must be a list of strings, not {value!r}")
    for key in ("request", "reply"):
        if key in given:
            _check(given[key], (str,), f"{place}: {key} must be 'module:function'")
            try:
                name = given[key]
                given[key] = imported(name, "module:function, for example convert:to_door")[1]
                if given[key] is None:
                    raise UsageError(f"{name} does not exist")
            except UsageError as error:
                raise UsageError(f"{place}, {key}: {error}") from None
    try:
        return Route(given.pop("source"), given.pop("target"), **given)
    except (BusError, ValueError, TypeError) as error:
        raise UsageError(f"{place}: {error}") from None


def _check(value: Any, kinds: tuple[type, ...], text: str) -> None:
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        raise UsageError(f"{text}, not {value!r}")
