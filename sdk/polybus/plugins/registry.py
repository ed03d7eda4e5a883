"""Parses URLs of the form ``<protocol>+<transport>://<address>[/path][?option=value&...]``, and finds their plugins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import get_data
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from attrs import fields_dict, has
from msgspec import Struct
from msgspec.structs import replace

from .._validation import check_characters, check_host_name, shown
from ..secrets import shown_url, without_secrets
from ..subjects import check_pattern
from . import Connector, ProtocolAdapter
from .features import EndpointFeatures, ProtocolFeatures

if TYPE_CHECKING:
    import os

    from . import HttpBinding, TransportAdapter, WebEndpoint
    from .extensions import Recorder

_OVER_HTTP = frozenset({"http", "https"})
"""Transports that use a protocol's `HttpBinding` instead of frames."""
_WITH_HEADERS = frozenset({"ws", "wss", *_OVER_HTTP})
"""Transports with headers. Credentials belong in these headers rather than in the URL."""
_WITH_QUERY = frozenset({"memory", *_WITH_HEADERS})
"""Built-in transports that send the query to the server. Third-party ones set ``carries_query = True``."""
_WITHOUT_PORTS = frozenset({"tcp", "tls"})
"""Transports without a default port of their own. The protocol may define one (`ProtocolFeatures.default_port`)."""
_WITHOUT_HOSTS = frozenset({"unix", "memory"})
_BRACKETS = "write an IPv6 address in brackets, for example [::1]:8000"


class SplitUrl(Struct, frozen=True, weakref=True):
    """Parts of a URL. The address includes the scheme (``ws://host/path``) but not the query."""

    protocol: str
    transport: str
    address: str
    options: Mapping[str, str]


def split_url(url: str, *, takes_user: bool = False) -> SplitUrl:
    """Split a URL into its parts. Set `takes_user` if the protocol accepts a user and password in the URL.

    Raises:
        ValueError: If the URL is malformed. The message shows the correct form.
    """
    scheme, found, rest = url.partition("://")
    shown = shown_url(url)
    protocol, plus, transport = scheme.lower().partition("+")  # RFC 3986, section 3.1
    if not (found and plus and protocol and transport):
        raise ValueError(
            f"{shown} is not a bus URL: use the form protocol+transport://address, for example ubre+ws://127.0.0.1:8000/bus"
        )
    check_characters(url, shown, blanks=transport in _WITHOUT_HOSTS)
    try:
        parts = urlsplit(f"{transport}://{rest}")
    except ValueError as error:
        hint = f": {_BRACKETS}" if "[" in rest or "]" in rest else ""
        raise ValueError(f"{shown}: {error}{hint}") from None
    if transport not in _WITHOUT_HOSTS:
        check_host_name(parts.hostname or "", shown)
    if parts.fragment:
        bare = shown_url(url.partition("#")[0])
        raise ValueError(f"{bare}: a bus URL has no fragment: leave out '#' and what follows it; in a value it is %23")
    if "@" in parts.path and transport not in _WITH_HEADERS and transport != "unix":
        raise ValueError(f"{scheme}://...: a '/' in a user, password or token is written %2F")
    try:
        _ = parts.port if transport != "unix" else None
    except ValueError:
        if parts.netloc.rpartition("@")[2].count(":") > 1 and "[" not in parts.netloc:
            raise ValueError(f"{shown}: {_BRACKETS}") from None
        form = f"{protocol}+{transport}://127.0.0.1:9000"
        raise ValueError(f"{shown}: the port must be a number from 0 to 65535, for example {form}") from None
    if parts.username is not None and transport in _WITH_HEADERS and not takes_user:
        raise ValueError(
            f"{shown}: a user or password in this URL is not sent: pass headers={{'authorization': 'Bearer TOKEN'}} instead"
        )
    try:
        _ = unquote(" ".join((parts.netloc, parts.path if transport == "unix" else "", parts.query)), errors="strict")
    except UnicodeDecodeError:
        raise ValueError(f"{shown}: a percent-encoded character is not UTF-8: ä, for example, is written %C3%A4") from None
    # `urlunsplit` would turn unix:///path into unix:/path.
    address = f"{transport}://{rest.partition('?')[0]}"
    pairs = parse_qsl(parts.query, keep_blank_values=True)
    options = dict(pairs)
    if len(options) < len(pairs) and transport not in _WITH_QUERY:  # a server's query may repeat a name
        twice = sorted(name for name in options if sum(name == one for one, _ in pairs) > 1)
        raise ValueError(f"{shown}: {', '.join(twice)} occurs more than once: write each option once")
    return SplitUrl(protocol, transport, address, options)


def resolve_url(
    url: str, protocol: str | ProtocolAdapter | None = None, *, serves: bool = False
) -> tuple[ProtocolAdapter, TransportAdapter, str]:
    """Return the protocol, the transport, and the transport's address for a URL.

    Query parameters that are not options of the protocol stay in the address if the transport sends the query to the server
    (`Handshake.query`), as WebSocket, HTTP and memory do.

    Args:
        url: The URL.
        protocol: Overrides the protocol in the URL, for example with an adapter that has options of its own.
        serves: True if the URL is for listening. Such a URL cannot have parameters for the server.

    Raises:
        ValueError: If the URL is malformed, the protocol or transport is not installed, or an option is not known.
    """
    user_options = _user_options(protocol or url.partition("+")[0].lower())
    parts = split_url(url, takes_user=user_options is not None)
    transport: TransportAdapter = _load("transports", parts.transport)()
    options, rest = dict(parts.options), dict[str, str]()
    if user_options is not None:
        parts, given = _without_user(parts, user_options)
        options |= given
    if parts.transport in _WITH_QUERY or EndpointFeatures.of(transport).carries_query:
        known = _option_names(protocol or parts.protocol)
        if known is not None:
            rest = {name: options.pop(name) for name in parts.options if name not in known}
            if rest and serves and parts.transport in _WITH_QUERY:
                shown = without_secrets(url)
                raise ValueError(f"{shown}: unknown server options {', '.join(rest)}; use one of {', '.join(known) or 'none'}")
    adapter = find_protocol(protocol or parts.protocol, options)
    if parts.transport in _WITHOUT_PORTS and (port := ProtocolFeatures.of(adapter).default_port) is not None:
        parts = _with_port(parts, port)
    if parts.transport in _OVER_HTTP:
        transport = _load("transports", parts.transport)(find_http_binding(adapter))
    EndpointFeatures.of(transport).load(serves)
    return adapter, transport, f"{parts.address}?{urlencode(rest)}" if rest else parts.address


def mistyped_options(url: str, protocol: str | ProtocolAdapter | None = None) -> str:
    """Return a warning about query parameters that go to the server but look like misspelled options, or an empty string."""
    parts = split_url(url, takes_user=True)
    if parts.transport not in _WITH_QUERY or not parts.options:
        return ""
    from difflib import get_close_matches

    known = list(_option_names(protocol or parts.protocol) or ())
    close = {name: get_close_matches(name.lower(), known, 1, 0.75) for name in parts.options if known and name not in known}
    return "; ".join(f"{name}: did you mean {option[0]}" for name, option in close.items() if option)


def _user_options(protocol: str | ProtocolAdapter) -> Callable[[str, str | None], Mapping[str, str]] | None:
    if isinstance(protocol, str):
        try:
            protocol = _load("protocols", protocol)
        except ValueError:
            return None  # reported by the look-up that follows
    return ProtocolFeatures.of(protocol).user_options


def _without_user(
    parts: SplitUrl, user_options: Callable[[str, str | None], Mapping[str, str]]
) -> tuple[SplitUrl, Mapping[str, str]]:
    url = urlsplit(parts.address)
    if url.username is None:
        return parts, {}
    address = f"{parts.transport}://{parts.address.partition('://')[2].rpartition('@')[2]}"
    password = None if url.password is None else unquote(url.password)
    return replace(parts, address=address), user_options(unquote(url.username), password)


def _with_port(parts: SplitUrl, port: int) -> SplitUrl:
    """Add a port to an address that has a host but no port."""
    url = urlsplit(parts.address)
    if url.hostname is None or url.port is not None:
        return parts
    netloc = f"{url.netloc.removesuffix(':')}:{port}"
    return replace(parts, address=urlunsplit((url.scheme, netloc, url.path, url.query, url.fragment)))


def _option_names(protocol: str | ProtocolAdapter) -> Collection[str] | None:
    """Return the options of a protocol, which default to its attrs fields, or None if the protocol accepts all parameters."""
    kind: Any = _load("protocols", protocol) if isinstance(protocol, str) else type(protocol)
    names = ProtocolFeatures.of(kind).option_names
    return tuple(fields_dict(kind)) if names is None and has(kind) else names


def join_url(protocol: ProtocolAdapter, address: str) -> str:
    """Return the URL for a protocol at an address, with the options that differ from their defaults."""
    query = urlencode(protocol.url_options)
    return f"{protocol.name}+{address}{'&' if '?' in address else '?'}{query}" if query else f"{protocol.name}+{address}"


def find_protocol(protocol: str | ProtocolAdapter, options: Mapping[str, str]) -> ProtocolAdapter:
    """Return the adapter for a protocol with options.

    Raises:
        TypeError: If `protocol` is neither a name nor a protocol object.
        ValueError: If the protocol is not installed, an option is not known, or options are passed with a protocol object.
    """
    if not isinstance(protocol, str):
        if options:
            raise ValueError(f"options belong to the protocol object or to the URL, not to both: {', '.join(options)}")
        if not callable(getattr(protocol, "session", None)):
            raise TypeError(f"protocol={protocol!r:.80} must be a name, for example 'ubre', or a protocol object")
        return protocol
    return cast("ProtocolAdapter", _load("protocols", protocol).from_options(options))


def find_reader(protocol: str, options: Mapping[str, str]) -> ProtocolAdapter:
    """Return an adapter for inspecting frames. Options that you don't pass default to the most tolerant values.

    Raises:
        ValueError: If the protocol is not installed, or an option is not known.
    """
    most = ProtocolFeatures.of(find_protocol(protocol, options)).inspect_options or {}
    return find_protocol(protocol, {**most, **options})


def find_http_binding(adapter: ProtocolAdapter) -> type[HttpBinding] | None:
    """Return a protocol's HTTP binding, or None."""
    own = ProtocolFeatures.of(adapter).http_binding
    if own is None and adapter.name in _own_entry_points()["bindings"]:
        return cast("type[HttpBinding]", _load("bindings", adapter.name))
    return own


def find_web_endpoint(adapter: ProtocolAdapter, path: str) -> WebEndpoint | None:
    """Return a protocol's own web endpoint for a path, or None."""
    make = ProtocolFeatures.of(adapter).web_endpoint
    if make is None and (binding := find_http_binding(adapter)) is not None:
        make = binding.from_options({}).web_endpoint
    return None if make is None else make(path)


def make_recorder(path: str | os.PathLike[str], **options: Any) -> Recorder:
    """Create a recorder for a folder without opening it.

    Raises:
        ImportError: If pyarrow is not installed.
        TypeError, ValueError: If an argument is invalid.
    """
    return cast("Recorder", _load("recorders", "folder")(path, **options))


def make_extension(name: str, *parts: Any) -> Any:
    """Create an extension from parts of the bus: a `Mesh`, a `Storage` or, with the name ``reading``, a `Reading`."""
    return _load("extensions", name)(*parts)


def supervise(**options: Any) -> int:
    """Run several worker processes until they exit. Returns the exit status."""
    return cast("int", _load("supervisors", "workers")(**options))


def worker_here() -> Any:
    """Return the worker object if this process is one of several workers, otherwise None. Call this once."""
    return _load("supervisors", "worker").here()


def metrics_maker(name: str, option: str) -> Callable[..., Any]:
    """Return a function that renders a ``/metrics`` page: ``scrape`` of a bus, ``workers`` of their parent, or ``broker``.

    Raises `ImportError`, which names `option`, if prometheus-client is not installed.
    """
    try:
        return cast("Callable[..., Any]", _load("metrics", name))
    except ImportError:
        needs = f"{option} needs prometheus-client: pip install 'polybus[prometheus]'"
        raise ImportError(needs, name="prometheus_client") from None


@cache
def _own_entry_points() -> Mapping[str, Mapping[str, str]]:
    """Return ``module:attribute`` of the built-in plugins, by group and name."""
    found: dict[str, dict[str, str]] = {}
    group: dict[str, str] = {}
    for line in (get_data("polybus", "entry_points.txt") or b"").decode().splitlines():
        name, is_entry, place = line.partition(" = ")
        if is_entry and not line.startswith("#"):
            group[name] = place
        elif line.startswith("["):
            group = found[line.strip("[]").removeprefix("polybus.")] = {}
    return found


@cache
def _load(group: str, name: str) -> Any:
    known = _own_entry_points()[group]
    if name in known:
        module, _, attribute = known[name].partition(":")
        return getattr(import_module(module), attribute)
    from importlib import metadata  # only for third-party plugins

    installed = {entry.name: entry for entry in metadata.entry_points(group=f"polybus.{group}")}
    if name not in installed:
        choices = ", ".join(sorted({*known, *installed}))
        raise ValueError(f"unknown {group[:-1]} {name!r}; use one of {choices}")
    return installed[name].load()


logger: logging.Logger = logging.getLogger("polybus")

_SECURE = ("tls", "wss", "https")


def resolve_target(
    target: str | Connector, protocol: str | ProtocolAdapter | None, verb: str = "connect"
) -> tuple[ProtocolAdapter, Connector]:
    """Return the protocol and connector for the target of `connect` or, with the verb ``listen``, of `Bus.serve`.

    Raises:
        TypeError: If the target is neither a URL nor a transport object.
        ValueError: If the URL is malformed or has an unknown protocol, transport or option, or `protocol` is missing.
    """
    if isinstance(target, str):
        adapter, transport, address = resolve_url(target, protocol)
        if "?" in target and (slips := mistyped_options(target, protocol)):
            logger.warning(
                "unknown options in the URL go to the server unchanged: %s? The URL is %s",
                slips,
                without_secrets(target),
                extra={"address": without_secrets(target)},
            )
        return adapter, transport.connector(address)
    _check_transport(target, verb)
    if protocol is None:
        called = "serve" if verb == "listen" else verb
        raise ValueError(f"{called}() with a transport object needs protocol=, for example protocol='ubre'")
    return find_protocol(protocol, {}), target


def _check_transport(target: object, verb: str) -> None:
    if not callable(getattr(target, verb, None)):
        hint = ""
        if isinstance(target, (list, tuple)):
            hint = "; open a link to each of several servers, with bus.connect(url, serves=[...])"
        elif target is None:
            hint = "; is a setting missing?"
        raise TypeError(
            f"{shown(target)} is neither a URL, such as 'ubre+ws://127.0.0.1:8000/bus', nor a transport object: "
            f"it is {type(target).__name__}{hint}"
        )


def has_tls(url: str) -> bool:
    """Return True if a URL, with or without a protocol, uses TLS."""
    return url.partition("://")[0].rpartition("+")[2].lower() in _SECURE


def with_tls(urls: Iterable[str]) -> list[str]:
    """Return the URLs that use TLS, or all URLs if no URL does, so that one of them rejects the TLS context."""
    all_of_them = list(urls)
    return [url for url in all_of_them if has_tls(url)] or all_of_them


def check_serves(serves: object) -> tuple[str | int, ...]:
    """Check the ``serves=`` argument, and return its patterns. Raises the errors of `connect`."""
    if isinstance(serves, (str, int)):
        serves = (serves,)
    if not isinstance(serves, Iterable):
        raise TypeError(
            f"serves={shown(serves)} must be a list of patterns, for example serves=['vehicle.>'], not {type(serves).__name__}"
        )
    patterns = tuple(serves)
    for pattern in patterns:
        check_pattern(pattern)
    return patterns
