"""Generates an AsyncAPI 3.0 document for a bus or a contract."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, get_origin
from urllib.parse import urlsplit

from attrs import frozen

from .. import Bus, errors
from ..contracts.contract import ContractPlan
from ..errors import Code, RequestError, class_of
from ..integrations import Operation, is_guarded, operations_of
from ..plugins.registry import find_protocol, split_url
from ..plugins.tools import check_given, check_type, shown, texts, without_secrets
from ..protocols.uprotocol.names import encode_name
from ..subjects import captures, is_pattern, segments
from .schemas import REFERENCE, Keys, Schema, Schemas, example, fitting_example

_OCTETS: Final = "application/octet-stream"
_BYTES: Final[Schema] = {"type": "string", "format": "binary"}
_ALWAYS: Final[tuple[Code, ...]] = (Code.DEADLINE_EXCEEDED, Code.INTERNAL, Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE)
"""Error codes that any request may receive."""
_SUMMARIES: Final = {
    Code.CANCELLED: "the request was cancelled",
    Code.UNKNOWN: "the peer gave no details",
    Code.INVALID_ARGUMENT: "the body is invalid; `detail` lists the errors",
    Code.DEADLINE_EXCEEDED: "there was no answer in time",
    Code.NOT_FOUND: "not found",
    Code.ALREADY_EXISTS: "already exists",
    Code.PERMISSION_DENIED: "the caller is not allowed",
    Code.RESOURCE_EXHAUSTED: "too many requests at once, or the body is too large",
    Code.FAILED_PRECONDITION: "not possible in the current state",
    Code.ABORTED: "the request conflicts with another one",
    Code.OUT_OF_RANGE: "out of range",
    Code.UNIMPLEMENTED: "no handler",
    Code.INTERNAL: "the handler failed; the text contains an id that is also in the log",
    Code.UNAVAILABLE: "the server is shutting down, or temporarily unavailable",
    Code.DATA_LOSS: "data loss",
    Code.UNAUTHENTICATED: "the caller is not authenticated",
}
_ERROR: Final[Schema] = {
    "title": "Error",
    "description": "An error as polybus clients see it. Its encoding depends on the protocol.",
    "type": "object",
    "properties": {
        "code": {"type": "string", "enum": [code.name for code in Code if code is not Code.OK]},
        "text": {"type": "string", "description": "Human-readable message."},
        "reason": {"type": "string", "description": "Machine-readable keyword that refines the code."},
        "detail": {"description": "Additional data about the error."},
    },
    "required": ["code"],
}


def document(
    source: Any,
    *,
    title: str = "polybus",
    version: str = "1.0.0",
    description: str = "",
    prefix: str = "",
    servers: Mapping[str, str] | None = None,
    protocol: str | None = None,
) -> dict[str, Any]:
    """Generate an AsyncAPI 3.0 document for a contract, or for a bus's handlers, subscriptions and declared publications.

    The result is the same on every machine. Use `to_text` to write it as JSON.

    Args:
        source: A `Bus` or a contract (a Protocol class). A bus is documented with its current handlers and `Bus.publishes`.
        title: Title of the document.
        version: Version of the API.
        description: Markdown text. Defaults to the docstring of the contract.
        prefix: Subject prefix for a contract, as in `Bus.implement`.
        servers: Server URLs by name, for example ``{"production": "ubre+wss://example.org/bus"}``.
        protocol: Protocol to generate bindings for if there are no servers.

    Raises:
        TypeError: If the source is neither a bus nor a contract, or an argument has the wrong type.
        ValueError: If a server URL is invalid.
    """
    check_given(title, str, "title", "title='Orders'")
    check_given(version, str, "version", "version='1.4.0'")
    check_given(description, str, "description", "description='Orders and payments.'")
    check_type(servers, Mapping, "servers", "servers={'production': 'ubre+wss://example.org/bus'}")
    check_type(protocol, str, "protocol", "protocol='ubre'")
    if protocol is not None:
        find_protocol(protocol, {})
    operations, text, guarded = _described(source, prefix)
    urls = dict(sorted((servers or {}).items()))
    texts(list(urls.values()), "servers", "ubre+wss://example.org/bus")
    info = {"title": title, "version": version}
    if description or text:
        info["description"] = description or text
    made: dict[str, Any] = {"asyncapi": "3.0.0", "info": info, "defaultContentType": "application/json"}
    if urls:
        keys = Keys()
        made["servers"] = {keys.free(str(name)): server_of(url) for name, url in urls.items()}
    wires = sorted({_parts(url)[:2] for url in urls.values()}) or ([] if protocol is None else [(protocol, "")])
    return made | _Builder(operations, guarded, wires).build()


def to_text(document: Mapping[str, Any]) -> str:
    """Return a document as JSON. Equal documents produce equal text."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _reference(*path: str) -> dict[str, str]:
    return {"$ref": "#/" + "/".join(path)}


def _address(subject: str | int) -> tuple[str, dict[str, str]]:
    """Return a subject or pattern in AsyncAPI syntax, and a description of each parameter. Wildcards become parameters."""
    if isinstance(subject, int) or not is_pattern(subject):
        return str(subject), {}
    uri = "/" in subject
    named = {place: name for name, place in captures(subject).items()}
    rest = "rest"
    while rest in named.values():
        rest += "_"
    parameters: dict[str, str] = {}
    tokens = []
    stars = 0
    for place, token in enumerate(segments(subject) if uri else subject.split(".")):
        if place in named:
            name = named[place]
        elif token == ">":
            name = rest
        elif token == "*" or (uri and "*" in token):
            stars += 1
            name = str(stars)
        else:
            tokens.append(token)
            continue
        parameters[name] = "the rest" if token == ">" else "one token"
        tokens.append(f"{{{name}}}")
    return ("/" if uri else ".").join(tokens), parameters


class _Builder:
    def __init__(self, operations: Sequence[Operation], guarded: bool, wires: list[tuple[str, str]]) -> None:
        self._given = operations
        self._guarded = guarded
        self._wires = wires
        self._schemas = Schemas(
            [one.takes for one in operations if not one.sent],
            [one.takes if one.sent else one.returns for one in operations],
        )
        self._error = self._schemas.keys.free("Error")
        self._channel_keys, self._operation_keys = Keys(), Keys()
        self._channels: dict[str, dict[str, Any]] = {}
        self._channel_of: dict[str | int, str] = {}
        self._operations: dict[str, dict[str, Any]] = {}
        self._messages: dict[str, dict[str, Any]] = {}
        self._codes: set[Code] = set()

    def build(self) -> dict[str, Any]:
        for operation in self._given:
            self._add(operation)
        schemas = self._schemas.components | ({self._error: _ERROR} if self._codes else {})
        messages = self._messages | {f"error.{code.name}": self._error_message(code) for code in self._codes}
        components = {"messages": dict(sorted(messages.items())), "schemas": dict(sorted(schemas.items()))}
        return {
            "channels": dict(sorted(self._channels.items())),
            "operations": dict(sorted(self._operations.items())),
            "components": {name: part for name, part in components.items() if part},
        }

    def _add(self, operation: Operation) -> None:
        words = Docstring.of(operation.text)
        channel = self._channel(operation, words)
        key = self._operation_keys.free(channel)
        made: dict[str, Any] = {
            "action": "send" if operation.sent else "receive",
            "channel": _reference("channels", channel),
            "title": str(operation.subject),
        }
        if words.summary:
            made["summary"] = words.summary
        if words.description:
            made["description"] = words.description
        if tag := _tag(operation.subject):
            made["tags"] = [{"name": tag}]
        if wire := operation_binding(operation, self._wires):
            made["bindings"] = wire
        style = operation.style
        asked = "item" if style == "channel" else style if style in ("publication", "notification") else "request"
        made["messages"] = [self._message(channel, key, asked, operation.takes, written=operation.sent)]
        if style not in ("publication", "notification"):
            made["reply"] = self._reply(operation, key, words)
        made["x-polybus-style"] = style
        for name in ("running", "group", "durable"):
            if (value := getattr(operation, name)) is not None:
                made[f"x-polybus-{name}"] = value
        self._operations[key] = made

    def _channel(self, operation: Operation, words: Docstring) -> str:
        subject = operation.subject
        known = self._channel_of.get(subject)
        if known is not None:
            return known
        address, parameters = _address(subject)
        key = self._channel_keys.free(address.replace("{", "").replace("}", ""))
        made: dict[str, Any] = {"address": address, "title": str(subject)}
        if parameters:
            made["parameters"] = {name: {"description": words.parameters.get(name, said)} for name, said in parameters.items()}
        made["messages"] = {}
        if any(transport in _WS for _, transport in self._wires):
            made["bindings"] = {"ws": {"method": "GET", "bindingVersion": "0.1.0"}}
        if isinstance(subject, int) or parameters:
            made["x-polybus-subject"] = subject
        self._channels[key] = made
        self._channel_of[subject] = key
        return key

    def _message(self, channel: str, operation: str, name: str, kind: Any, *, written: bool) -> dict[str, str]:
        key = f"{operation}.{name}"
        schema = self._schemas.of(kind, written=written)
        made: dict[str, Any] = {"name": key, "title": _title(schema)}
        if kind is bytes:
            made["title"], made["contentType"], schema = "bytes", _OCTETS, _BYTES
        made["payload"] = schema
        shown = None
        if kind not in (None, type(None), bytes):
            components = self._schemas.components
            shown = example(schema, components) if written else fitting_example(schema, components, kind)
        if shown is not None:
            made["examples"] = [{"payload": shown}]
        self._messages[key] = made
        self._channels[channel]["messages"][key] = _reference("components", "messages", key)
        return _reference("channels", channel, "messages", key)

    def _reply(self, operation: Operation, key: str, words: Docstring) -> dict[str, Any]:
        """Return an operation's reply. The request contains the reply's address."""
        channel = self._channel_keys.free(f"{key}.reply")
        self._channels[channel] = {"address": None, "title": f"answers of {operation.subject}", "messages": {}}
        name = "answer" if operation.style == "request" else "reply_item"
        messages = [self._message(channel, key, name, operation.returns, written=True)]
        codes = dict(words.raises)
        implied: set[Code] = set(_ALWAYS)
        if operation.takes not in (None, Any, object):
            implied.add(Code.INVALID_ARGUMENT)
        if self._guarded:
            implied.add(Code.PERMISSION_DENIED)
        for code in [*codes, *sorted(implied - codes.keys(), key=lambda code: code.name)]:
            name = f"error.{code.name}"
            self._channels[channel]["messages"][name] = _reference("components", "messages", name)
            messages.append(_reference("channels", channel, "messages", name))
            self._codes.add(code)
        reply: dict[str, Any] = {"channel": _reference("channels", channel), "messages": messages}
        if codes:
            reply["x-polybus-errors"] = {code.name: text for code, text in codes.items()}
        return reply

    def _error_message(self, code: Code) -> dict[str, Any]:
        return {
            "name": code.name,
            "title": "DeadlineExceeded" if code is Code.DEADLINE_EXCEEDED else class_of(code, None).__name__,
            "summary": _SUMMARIES[code],
            "payload": {"allOf": [{"$ref": REFERENCE + self._error}, {"properties": {"code": {"const": code.name}}}]},
            "x-polybus-code": code.value,
        }


def _tag(subject: str | int) -> str:
    """Return the first token of a subject, used to group operations."""
    if isinstance(subject, int):
        return ""
    parts: Sequence[str] = subject.strip("/").split("/") if "/" in subject else subject.split(".")
    return parts[0] if len(parts) > 1 and not is_pattern(parts[0]) else ""


def _title(schema: Schema) -> str:
    if "$ref" in schema:
        return str(schema["$ref"]).removeprefix(REFERENCE)
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " or ".join(map(_title, schema[key]))
    if schema.get("type") == "array":
        items = schema.get("items")
        return f"list of {_title(items)}" if isinstance(items, dict) and items else "list"
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    kind = schema.get("type", "anything")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def servers_of(urls: Iterable[str]) -> dict[str, str]:
    """Name servers after their protocol and transport. Duplicate names are numbered."""
    found: dict[str, str] = {}
    for url in urls:
        name = url.partition("://")[0].replace("+", "-")
        number, free = 1, name
        while free in found:
            number += 1
            free = f"{name}-{number}"
        found[free] = url
    return found


# -- operations: summary, description and errors come from the docstring. AsyncAPI defines bindings for ws, http and nats; the
# names of all others start with ``x-``.

_SECTION: Final = re.compile(r"^(?P<title>[A-Z][a-z]+):[ \t]*\n(?P<text>(?:[ \t]+\S.*\n?|[ \t]*\n)+)", re.M)
_ENTRY: Final = re.compile(r"^(?P<names>\w[\w.]*(?:, *\w[\w.]*)*):\s*(?P<text>.*)$")
_LEFT_OUT: Final = ("Args", "Arguments", "Raises", "Returns", "Yields", "Attributes")


@frozen
class Docstring:
    summary: str  # First sentence or line
    description: str  # Remaining text before the sections
    parameters: dict[str, str]  # Descriptions by parameter
    raises: dict[Code, str]  # Descriptions by error code

    @classmethod
    def of(cls, text: str) -> Docstring:
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
    """Return the code with this name, or the code of an error class such as ``NotFound``. Returns `None` for other names."""
    name = name.rpartition(".")[2]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RequestError) and kind is not RequestError:
        return getattr(kind, "default_code", None)
    return Code.__members__.get(name)


def _entries(section: str) -> dict[str, str]:
    """Parse the entries of a section. A more deeply indented line continues the previous entry."""
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


def _described(source: Any, prefix: str) -> tuple[list[Operation], str, bool]:
    """Return the operations ordered by subject, the docstring of a contract, and True if peers need permission."""
    text, guarded = "", False
    operations: Iterable[Operation]
    if isinstance(source, Bus):
        if prefix:
            raise TypeError(f"prefix={prefix!r} is only for contracts: the subjects of a bus are complete")
        operations, guarded = operations_of(source), is_guarded(source)
    elif isinstance(get_origin(source) or source, type):
        contract = ContractPlan.of(source)
        text = contract.text
        operations = [
            Operation(subject, method.style, method.takes, method.returns, method.text, name=method.name)
            for subject, method in contract.subjects(prefix).items()
        ]
    else:
        raise TypeError(f"{shown(source)} is neither a Bus nor a contract, which is a Protocol class")
    order = sorted(operations, key=lambda one: (str(one.subject), one.style == "publication", one.sent, one.name))
    return order, text, guarded


_WS: Final = ("ws", "wss")
_HTTP: Final = ("http", "https")


def server_of(url: str) -> dict[str, Any]:
    """Return the server object for a URL, leaving out its secrets. Raises `ValueError` if the URL has no host."""
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
