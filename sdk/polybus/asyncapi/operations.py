"""Collects operations: the handlers, subscriptions and publications of a bus, or the methods of a contract.

Summary, description and errors come from the docstring. AsyncAPI defines bindings for ws, http and nats; all other names
start with ``x-``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final, get_origin
from urllib.parse import urlsplit

from attrs import frozen

from .. import Bus, errors
from ..contracts.contract import ContractPlan
from ..errors import Code, RequestError
from ..integrations import Operation, is_guarded, operations_of
from ..plugins.registry import find_protocol, split_url
from ..plugins.tools import shown, without_secrets
from ..protocols.uprotocol.names import encode_name

_SECTION: Final = re.compile(r"^(?P<title>[A-Z][a-z]+):[ \t]*\n(?P<text>(?:[ \t]+\S.*\n?|[ \t]*\n)+)", re.M)
_ENTRY: Final = re.compile(r"^(?P<names>\w[\w.]*(?:, *\w[\w.]*)*):\s*(?P<text>.*)$")
_LEFT_OUT: Final = ("Args", "Arguments", "Raises", "Returns", "Yields", "Attributes")


@frozen
class Docstring:
    """The parts of a docstring.

    Attributes:
        summary: The first sentence, or the first line.
        description: The rest of the text before the sections.
        parameters: Text by parameter.
        raises: Text by error code.
    """

    summary: str
    description: str
    parameters: dict[str, str]
    raises: dict[Code, str]

    @classmethod
    def of(cls, text: str) -> Docstring:
        """Parse a Google-style docstring."""
        clean = inspect.cleandoc(text) + "\n"
        sections = {found["title"]: found["text"] for found in _SECTION.finditer(clean)}
        rest = _SECTION.sub(lambda found: "" if found["title"] in _LEFT_OUT else found[0], clean).strip()
        summary, _, description = rest.partition("\n\n")
        entries = _entries(sections.get("Args", sections.get("Arguments", "")))
        raises: dict[Code, str] = {}
        for name, said in _entries(sections.get("Raises", "")).items():
            if (code := code_of(name)) is not None:
                raises.setdefault(code, said)
        return cls(" ".join(summary.split()), description.strip(), entries, raises)


def code_of(name: str) -> Code | None:
    """Return the code of an error class such as ``NotFound``, or of a code's name, and None for other names."""
    name = name.rpartition(".")[2]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RequestError) and kind is not RequestError:
        code: Code | None = getattr(kind, "default_code", None)
        return code
    return Code.__members__.get(name)


def _entries(section: str) -> dict[str, str]:
    """Parse the entries of a section. A line that is indented further continues the previous entry."""
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(section).splitlines():
        if (entry := _ENTRY.match(line)) is not None:
            names = [name.strip() for name in entry["names"].split(",")]
            entries |= dict.fromkeys(names, entry["text"])
        else:
            for name in names:
                entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries


@frozen
class Described:
    """The operations of a bus or a contract.

    Attributes:
        operations: Ordered by subject.
        text: Docstring of the contract.
        guarded: True if peers require permission.
    """

    operations: tuple[Operation, ...]
    text: str = ""
    guarded: bool = False

    @classmethod
    def of(cls, source: Any, prefix: str) -> Described:
        """Read a bus or a contract.

        Raises:
            TypeError: If it is neither a bus nor a contract, the contract is invalid, or a prefix is given for a bus.
        """
        if isinstance(source, Bus):
            if prefix:
                raise TypeError(f"prefix={prefix!r} is only for contracts: the subjects of a bus are complete")
            return cls(_sorted(operations_of(source)), guarded=is_guarded(source))
        if isinstance(get_origin(source) or source, type):
            contract = ContractPlan.of(source)
            return cls(_sorted(_promised(contract, prefix)), contract.text)
        raise TypeError(f"{shown(source)} is neither a Bus nor a contract, which is a Protocol class")


def _sorted(operations: Iterable[Operation]) -> tuple[Operation, ...]:
    return tuple(sorted(operations, key=lambda one: (str(one.subject), one.style == "publication", one.sent, one.name)))


def _promised(contract: ContractPlan, prefix: str) -> Iterator[Operation]:
    for subject, method in contract.subjects(prefix).items():
        yield Operation(subject, method.style, method.takes, method.returns, method.text, name=method.name)


_WS: Final = ("ws", "wss")
_HTTP: Final = ("http", "https")


def server_of(url: str) -> dict[str, Any]:
    """Return the server object for a URL, without its secrets.

    Raises:
        ValueError: If the URL has no host.
    """
    protocol, transport, address = _parts(url)
    parts = urlsplit(address)
    if not parts.hostname or transport in ("memory", "unix"):
        raise ValueError(
            f"{without_secrets(url)!r} has no host: give a server that others can reach, such as ubre+wss://example.org/bus"
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    host = host if parts.port is None else f"{host}:{parts.port}"
    made: dict[str, Any] = {"host": host}
    if parts.path not in ("", "/"):
        made["pathname"] = parts.path
    made["protocol"] = "nats" if protocol == "nats" else transport if transport in _WS + _HTTP else f"{protocol}+{transport}"
    if transport in ("wss", "https", "tls"):
        made["description"] = "encrypted with TLS"
    made["x-polybus-protocol"] = protocol
    made["x-polybus-transport"] = transport
    return made


def _parts(url: str) -> tuple[str, str, str]:
    parts = split_url(url, takes_user=True)
    find_protocol(parts.protocol, {})
    return parts.protocol, parts.transport, parts.address


def wires_of(urls: list[str]) -> list[tuple[str, str]]:
    """Return the distinct pairs of protocol and transport."""
    return sorted({_parts(url)[:2] for url in urls})


def channel_binding(url: str) -> dict[str, Any]:
    _, transport, _ = _parts(url)
    if transport not in _WS:
        return {}
    return {"ws": {"method": "GET", "bindingVersion": "0.1.0"}}


def operation_binding(operation: Operation, wires: list[tuple[str, str]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if operation.group is not None or operation.durable is not None or any(protocol == "nats" for protocol, _ in wires):
        made["nats"] = {"bindingVersion": "0.1.0"} | ({} if operation.group is None else {"queue": operation.group})
        if operation.durable is not None:  # a JetStream consumer, which the binding cannot describe
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
