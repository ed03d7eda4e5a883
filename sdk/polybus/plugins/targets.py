"""Targets of `connect` and `serve`: a URL or a transport object, and what goes with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .._secrets import without_secrets
from .._validation import shown
from ..subjects import check_pattern
from . import Connector, ProtocolAdapter
from .registry import find_protocol, mistyped_options, resolve_url, split_url

logger: logging.Logger = logging.getLogger("polybus")

_SECURE = ("tls", "wss", "https")


def resolve_target(
    target: str | Connector, protocol: str | ProtocolAdapter | None, verb: str = "connect"
) -> tuple[ProtocolAdapter, Connector]:
    """Protocol and connector of what `connect` was given; with the verb ``listen``, what `Bus.serve` was.

    Raises:
        ValueError: The URL is not of the form ``<protocol>+<transport>://<address>``, or one of its parts is unknown.
    """
    if isinstance(target, str):
        adapter, transport, address = resolve_url(target, protocol)
        if "?" in target and (slips := mistyped_options(target, protocol)):
            logger.warning(
                "%s?, in %s; it is no option, and goes to the server as it is",
                slips,
                without_secrets(target),
                extra={"address": without_secrets(target)},
            )
        return adapter, transport.connector(address)
    check_transport(target, verb)
    if protocol is None:
        called = "serve" if verb == "listen" else verb
        raise ValueError(f"{called}() with a transport object needs protocol=, for example protocol='ubre'")
    return find_protocol(protocol, {}), target


def check_transport(target: object, verb: str) -> None:
    """Raise TypeError for what is neither a URL nor a transport object."""
    if not callable(getattr(target, verb, None)):
        hint = ""
        if isinstance(target, (list, tuple)):
            hint = "; of several servers each has a link of its own, bus.connect(url, serves=[...])"
        elif target is None:
            hint = "; is a setting missing, from which it comes?"
        raise TypeError(
            f"{shown(target)} is neither a URL, such as 'ubre+ws://127.0.0.1:8000/bus', nor a transport object: "
            f"it is {type(target).__name__}{hint}"
        )


def with_tls(urls: Iterable[str]) -> list[str]:
    """The URLs that a context belongs to: with TLS, or all where none has it, which then refuse the context."""
    all_of_them = list(urls)
    return [url for url in all_of_them if split_url(url).transport in _SECURE] or all_of_them


def check_serves(serves: object) -> tuple[str | int, ...]:
    """The patterns of ``serves=``; raise TypeError for what is none."""
    if isinstance(serves, (str, int)):
        serves = (serves,)
    if not isinstance(serves, Iterable):
        raise TypeError(f"serves={shown(serves)}: patterns, for example serves=['vehicle.>'], not {type(serves).__name__}")
    patterns = tuple(serves)
    for pattern in patterns:
        check_pattern(pattern)
    return patterns
