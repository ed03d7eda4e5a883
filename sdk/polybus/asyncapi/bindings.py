"""Servers and bindings: an operation on the wire of a protocol. AsyncAPI knows ws, http and nats; others have ``x-``."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from .._secrets import without_secrets
from ..plugins.registry import find_protocol, split_url
from ..protocols.uprotocol.names import encode_name
from .operations import Operation

_WS: Final = ("ws", "wss")
_HTTP: Final = ("http", "https")


def server(url: str) -> dict[str, Any]:
    """The server object of a URL, without what is secret in it.

    Raises:
        ValueError: It is no URL of a server.
    """
    protocol, transport, address = _parts(url)
    parts = urlsplit(address)
    if not parts.hostname or transport in ("memory", "unix"):
        raise ValueError(
            f"{without_secrets(url)!r} has no host: the server of a document is one that others reach, as ubre+wss://example.org/bus"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    host = host if parts.port is None else f"{host}:{parts.port}"
    made: dict[str, Any] = {"host": host}
    if parts.path not in ("", "/"):
        made["pathname"] = parts.path
    made["protocol"] = "nats" if protocol == "nats" else transport if transport in _WS + _HTTP else f"{protocol}+{transport}"
    if transport in ("wss", "https", "tls"):
        made["description"] = "encrypted by TLS"
    made["x-polybus-protocol"] = protocol
    made["x-polybus-transport"] = transport
    return made


def _parts(url: str) -> tuple[str, str, str]:
    parts = split_url(url, takes_user=True)
    find_protocol(parts.protocol, {})
    return parts.protocol, parts.transport, parts.address


def wires(urls: list[str]) -> list[tuple[str, str]]:
    """The protocol and the transport of each URL, every pair once."""
    return sorted({_parts(url)[:2] for url in urls})


def of_channel(url: str) -> dict[str, Any]:
    """The bindings of channels at a server."""
    _, transport, _ = _parts(url)
    if transport not in _WS:
        return {}
    return {"ws": {"method": "GET", "bindingVersion": "0.1.0"}}


def of_operation(operation: Operation, wires: list[tuple[str, str]]) -> dict[str, Any]:
    """The bindings of an operation over these wires."""
    made: dict[str, Any] = {}
    if operation.group is not None or operation.durable is not None or any(protocol == "nats" for protocol, _ in wires):
        made["nats"] = {"bindingVersion": "0.1.0"} | ({} if operation.group is None else {"queue": operation.group})
        if operation.durable is not None:  # a consumer of JetStream, which the binding does not know
            made["nats"]["x-durable"] = operation.durable
    if not operation.sent and any(transport in _HTTP for _, transport in wires):
        made["http"] = {"method": "POST", "bindingVersion": "0.3.0"}
    subject = operation.subject
    heard = operation.style == "publication"
    for protocol in sorted({protocol for protocol, _ in wires}):
        if protocol == "ubre":
            opened = operation.style in ("stream", "channel")
            made["x-ubre"] = {"publish" if heard else "open" if opened else "request": subject}
        elif protocol == "csb":
            made["x-csb"] = {"action": subject} if isinstance(subject, int) else {"subject": subject}
        elif protocol == "jrep":
            made["x-jrep"] = {"ToSubject": str(subject)}
        elif protocol == "uprotocol" and isinstance(subject, str):
            name = subject if "/" in subject else encode_name(subject)
            if heard:
                made["x-uprotocol"] = {"type": "pub.v1", "resource": name if "/" in subject else f"{name}#Message"}
            else:
                made["x-uprotocol"] = {"type": "req.v1", "resource": name if "/" in subject else f"rpc.{name}"}
    return made
