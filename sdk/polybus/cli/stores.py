"""`polybus store` and `polybus dead`: the stores and dead letters of a cluster, or of an external stream."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import anyio
import typer

from .. import Store
from ..cluster.durable.storage import check_durable_name
from ..errors import BusError, ConnectFailed
from ..nodes import check_store_name
from ..plugins.registry import resolve_url
from ..plugins.tools import counted, in_one_line, shown_duration
from .options import (
    Json,
    Tls,
    argument,
    cluster_of,
    connecting,
    connects,
    flag,
    group,
    hasty_bus,
    json_line,
    option,
    parse_size,
)
from .problems import PeerError, UsageError, describe, for_shell, say, unwrapped, without_wait

if TYPE_CHECKING:
    from ..cluster.durable.administration import Administration, StoreState
    from ..cluster.durable.dead_letters import DeadLetter, Letters

P = TypeVar("P")
T = TypeVar("T")

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LARGEST = 128 << 20
"""Maximum bytes of an answer that contains a dead letter: the server's maximum, as text."""
_TEXT = 4096
"""Maximum characters of a body to show."""
_MOST = (1 << 63) - 1
"""Largest number that the engine supports."""


def _number(metavar: str, help: str) -> Any:
    return typer.Argument(metavar=metavar, help=help, min=1, max=_MOST)


ClusterUrl = Annotated[str, argument("URL", "Cluster URL: nats+tcp://host/name, or auto for POLYBUS_CLUSTER.")]
LettersUrl = Annotated[
    str, argument("URL", "Cluster URL, or nats+tcp://host?dead_letters=PREFIX for the dead letters of an external stream.")
]
Yes = Annotated[bool, flag("--yes", "Confirm the removal, which cannot be undone.")]
Durable = Annotated[str, option("NAME", "Only dead letters of this durable handler.")]
Number = Annotated[int, _number("NUMBER", "Number of the dead letter, as shown by polybus dead list.")]
Numbers = Annotated[list[int] | None, _number("NUMBER", "Numbers of the dead letters, as shown by polybus dead list.")]
All = Annotated[bool, flag("--all", "All dead letters.")]


stores: typer.Typer = group("store", "Manage the stores of a cluster.")
dead: typer.Typer = group("dead", "List, retry and drop dead letters.")


@asynccontextmanager
async def _administration(url: str, tls: Tls) -> AsyncIterator[Administration]:
    from ..cluster.durable.administration import Administration  # an eighth of a second, only for these two commands

    cluster = cluster_of(url, tls=tls)
    if cluster is None:
        raise UsageError(f"{url} does not name a cluster: add the name, as in nats+tcp://127.0.0.1:4222/shop, or use auto")
    async with hasty_bus(10.0, cluster, _LARGEST) as bus:
        yield Administration.of(bus)


@asynccontextmanager
async def _letters_at(url: str, tls: Tls) -> AsyncIterator[Letters]:
    if cluster_of(url, tls=tls) is not None:
        async with _administration(url, tls) as administration:
            yield administration
        return
    adapter: Any = resolve_url(url)[0]
    if not getattr(adapter, "dead_letters", ""):
        raise UsageError(
            f"{url} does not name a cluster: add the name, as in nats+tcp://127.0.0.1:4222/shop, or use auto. For an external "
            "stream, add the prefix of its dead letters: nats+tcp://127.0.0.1:4222?dead_letters=dead.orders"
        )
    from ..cluster.durable.foreign import letters_of

    async with connecting(url, None, tls, 0.0, bus=hasty_bus(10.0, None, _LARGEST)) as bus:
        yield await letters_of(bus)


def _with(opened: AbstractAsyncContextManager[P], act: Callable[[P], Awaitable[T]]) -> T:
    async def run() -> T:
        async with opened as place:
            return await act(place)

    try:
        return unwrapped(lambda: anyio.run(run))
    except ConnectFailed as error:  # these commands have no --wait
        raise PeerError(f"cannot connect to {error.url}: {for_shell(without_wait(error.reason))}") from None


# -- polybus store -----------------------------------------------------------------------------------------------------------


@stores.command("list")
@connects
def list_stores(url: ClusterUrl, as_json: Json = False, tls: Tls = None) -> None:
    """List the stores of a cluster, one per line."""
    found = _with(_administration(url, tls), lambda administration: administration.stores())
    for store in found:
        if as_json:
            print(json_line(_members(store)))
        else:
            durables = f"; {counted(len(store.durables), 'durable handler')}" if store.durables else ""
            kept = f"{counted(store.publications, 'publication')}, {store.bytes} bytes"
            print(f"{store.name}: {', '.join(store.patterns)}; {kept}{durables}")
    if not found and not as_json:
        unknown = _with(_administration(url, tls), lambda place: place.unknown())
        print(f"no stores: {unknown}" if unknown else "no stores")


@stores.command("show")
@connects
def show_store(
    url: ClusterUrl, name: Annotated[str, argument("NAME", "Name of the store.")], as_json: Json = False, tls: Tls = None
) -> None:
    """Show a store and the progress of its durable handlers."""
    check_store_name(name)
    store = _with(_administration(url, tls), lambda administration: administration.store(name))
    if as_json:
        print(json_line(_members(store)))
        return
    age, most = store.config.get("max_age") or 0, store.config.get("max_bytes", -1)
    print(f"{store.name}: {', '.join(store.patterns)}")
    bound = f"at most {most}" if most > 0 else "as many as the server allows"
    print(f"{counted(store.publications, 'publication')}, {store.bytes} bytes, {bound}")
    print(f"kept for {shown_duration(age) if age else 'ever'}; replicas {store.config.get('num_replicas', 1)}")
    for durable, (pending, unacknowledged) in store.durables.items():
        again = f" ({store.again[durable]} redelivered)" if store.again[durable] else ""
        print(f"  {durable}: {pending} pending, {unacknowledged} unacknowledged{again}")


def _members(store: StoreState) -> dict[str, Any]:
    return {
        "name": store.name,
        "patterns": list(store.patterns),
        "publications": store.publications,
        "bytes": store.bytes,
        "max_age": (store.config.get("max_age") or 0) / 1e9 or None,
        "max_bytes": most if (most := store.config.get("max_bytes", -1)) > 0 else None,
        "replicas": store.config.get("num_replicas", 1),
        "work": store.config.get("retention") == "workqueue",
        "durables": {
            name: {"pending": pending, "unacknowledged": unacknowledged, "redelivered": store.again[name]}
            for name, (pending, unacknowledged) in store.durables.items()
        },
    }


@stores.command("add")
@connects
def add_store(
    url: ClusterUrl,
    name: Annotated[str, argument("NAME", "Name of the store.")],
    patterns: Annotated[list[str], argument("PATTERN", "Subject patterns to store, for example 'orders.>'.")],
    max_age: Annotated[str, option("AGE", "Remove publications older than this, for example 90s, 30m, 12h or 7d.")] = "",
    max_bytes: Annotated[str, option("SIZE", "Maximum size of the store, for example 500MiB or 10GiB.")] = "",
    replicas: Annotated[int, option("N", "Number of servers with a copy of each publication.", min=1)] = 1,
    work: Annotated[bool, flag("--work", "Remove a publication once a durable handler has processed it.")] = False,
    tls: Tls = None,
) -> None:
    """Create a store.

    If the store exists with different settings, the command fails and leaves it unchanged.
    """
    store = Store(
        name,
        *patterns,
        max_age=_age(max_age) if max_age else None,
        max_bytes=parse_size("--max-bytes", max_bytes) if max_bytes else None,
        replicas=replicas,
        work=work,
    )
    _with(_administration(url, tls), lambda administration: administration.add(store))


def _age(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise UsageError(f"--max-age {text!r}: use a number followed by s, m, h or d, for example 7d")
    return int(found[1]) * float(_UNITS[found[2]])


@stores.command("trim")
@connects
def trim_store(
    url: ClusterUrl, name: Annotated[str, argument("NAME", "Name of the store.")], yes: Yes = False, tls: Tls = None
) -> None:
    """Remove publications that all durable handlers have processed."""
    check_store_name(name)
    if not yes:
        raise UsageError(f"{name}: replays and copies lose the removed publications: confirm with --yes")
    count = _with(_administration(url, tls), lambda administration: administration.trim(name))
    print(f"{counted(count, 'publication')} removed")


@stores.command("remove")
@connects
def remove_store(
    url: ClusterUrl,
    name: Annotated[str, argument("NAME", "Name of the store.")],
    durable: Annotated[str, option("NAME", "Remove only this durable handler, which must not have workers any more.")] = "",
    yes: Yes = False,
    tls: Tls = None,
) -> None:
    """Remove a store and its contents, or one durable handler."""
    check_store_name(name)
    if durable:
        check_durable_name(durable)
        if not yes:
            raise UsageError(
                f"{durable}: its position is lost, and a new one of that name starts from the beginning: confirm with --yes"
            )
        _with(_administration(url, tls), lambda administration: administration.remove_durable(name, durable))
        return
    if not yes:
        store = _with(_administration(url, tls), lambda administration: administration.store(name))
        raise UsageError(f"{name}: {counted(store.publications, 'publication')} would be lost forever: confirm with --yes")
    _with(_administration(url, tls), lambda administration: administration.remove(name))


# -- polybus dead ------------------------------------------------------------------------------------------------------------


@dead.command("list")
@connects
def list_dead(url: LettersUrl, durable: Durable = "", as_json: Json = False, tls: Tls = None) -> None:
    """List dead letters, one per line, oldest first."""
    if durable:
        check_durable_name(durable)

    async def show(place: Letters) -> bool:
        found = False
        async for letter in place.letters(durable):
            found = True
            if as_json:
                print(json_line(_facts(letter)))
            else:
                error = f" [{letter.error_id}]" if letter.error_id else ""
                line = f"{letter.number}  {letter.at[:19]}  {letter.durable}  {letter.subject}"
                print(in_one_line(f"{line}  {counted(letter.attempts, 'attempt')}: {letter.death}{error}"))
        if not found:
            await place.check(durable)
        return found

    if not _with(_letters_at(url, tls), show) and not as_json:
        print("no dead letters")


@dead.command("show")
@connects
def show_dead(url: LettersUrl, number: Number, as_json: Json = False, tls: Tls = None) -> None:
    """Show a dead letter with its headers and body."""
    letter = _with(_letters_at(url, tls), lambda place: place.letter(number))
    body = letter.body.decode("utf-8", "backslashreplace")
    if as_json:
        print(json_line({**_facts(letter), "headers": letter.headers, "body": body}))
        return
    for name, value in {**_facts(letter), **{f"header {name}": value for name, value in letter.headers.items()}}.items():
        print(in_one_line(f"{name}: {value}"))
    more = f" ... ({len(body)} characters)" if len(body) > _TEXT else ""
    print(in_one_line(f"body: {body[:_TEXT]}{more}"))


def _facts(letter: DeadLetter) -> dict[str, Any]:
    return {
        "number": letter.number,
        "at": letter.at,
        "durable": letter.durable,
        "subject": letter.subject,
        "attempts": letter.attempts,
        "death": letter.death,
        "error_id": letter.error_id,
        "origin": letter.origin,
        **({"left_out": letter.left_out, "whole": letter.whole or None} if letter.left_out else {}),
        **({"fault": letter.fault} if letter.fault else {}),
    }


@dead.command("retry")
@connects
def retry_dead(
    url: LettersUrl, numbers: Numbers = None, all_of_them: All = False, durable: Durable = "", tls: Tls = None
) -> None:
    """Store dead letters again, each for its own durable handler."""
    _each(url, tls, numbers, all_of_them, durable, lambda at, letter: at.retry(letter), "stored again")


@dead.command("drop")
@connects
def drop_dead(
    url: LettersUrl, numbers: Numbers = None, all_of_them: All = False, durable: Durable = "", yes: Yes = False, tls: Tls = None
) -> None:
    """Remove dead letters."""
    if not yes:
        raise UsageError("dropped letters are lost forever: confirm with --yes")
    _each(url, tls, numbers, all_of_them, durable, lambda at, letter: at.drop(letter), "dropped")


def _each(
    url: str,
    tls: Tls,
    numbers: list[int] | None,
    all_of_them: bool,
    durable: str,
    act: Callable[[Letters, DeadLetter], Awaitable[None]],
    done: str,
) -> None:
    """Process dead letters one by one. A failure is reported, and the remaining letters are processed."""
    if bool(numbers) == all_of_them:
        raise UsageError("give their numbers from polybus dead list, or --all")
    if durable:
        check_durable_name(durable)
        if numbers:
            raise UsageError("give the numbers of the letters, or --all with --durable, because each letter has one handler")

    async def run(place: Letters) -> Counter[int]:
        statuses = Counter[int]()
        for number in numbers or ():
            statuses[await _status(_at(place, number, act))] += 1
        if not numbers:
            async with aclosing(place.letters(durable)) as letters:
                async for letter in letters:
                    statuses[await _status(act(place, letter))] += 1
        if not statuses:
            await place.check(durable)
        return statuses

    statuses = _with(_letters_at(url, tls), run)
    count, worst = statuses[0], max(statuses, default=0)
    if count or not worst:
        print(f"{counted(count, 'dead letter')} {done}")
    if worst:
        raise typer.Exit(worst)


async def _at(place: Letters, number: int, act: Callable[[Letters, DeadLetter], Awaitable[None]]) -> None:
    await act(place, await place.letter(number))


async def _status(work: Awaitable[None]) -> int:
    """Wait for work and report its failure. Returns the exit status."""
    try:
        await work
    except BusError as error:
        text, status = describe(error)
        say(text)
        return status
    return 0
