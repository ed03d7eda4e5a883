"""Converts event attributes to messages; shared by both formats.

Readers handle the clear and cheap cases; only ``examined`` uses the table of rules and refuses events.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

from ...body import OCTETS, BodyFormat
from ...errors import Code, RemoteProtocolError
from ...limits import Limits
from ...message import Kind, Message
from .._protobuf import ANY, check_any, code_of, pack
from .._shared import remember
from .._uprotocol import id_version
from .bodies import STATUSES, read_status
from .events import KINDS, EventMessage, UsualEvent, event_of, read_extension, read_headers
from .names import UriError, read_uri
from .rules import RULES, TOLERATED, TYPES, Facts, Leniency, Violation, is_uri_reference, refuse, violations

BATCH: Final = 4096  # Maximum number of events in a batch; 1 MiB holds some thousands

_ADDRESSES: Final = 1024
_KINDS: Final = {"publish": Kind.PUBLISH, "notification": Kind.NOTIFY, "request": Kind.REQUEST, "response": Kind.RESPONSE}
_REQUEST, _RESPONSE = Kind.REQUEST, Kind.RESPONSE
_ADDRESS_RULES: Final = tuple(rule for rule in RULES if rule.attribute in ("source", "sink"))
known_schema: Final = lru_cache(256)(is_uri_reference)
"""True if a schema is a valid URI reference; cached, because there are few."""
_UPRIORITY: Final = "UPRIORITY_"
OLD_LEVEL: Final = "permission_level"
MISPLACED_DATA: Final = "data.member"  # Name in `TOLERATED` for base64 in the member ``data``
BARE_DATA: Final = "data.any"  # Name in `TOLERATED` for protobuf data without ``Any``


class ReturnAddress(str):
    """A request's id with the request: its answer uses addresses, priority and ttl."""

    __slots__ = ("event",)

    event: UsualEvent


def return_address(event: UsualEvent) -> ReturnAddress:
    address = ReturnAddress(event.id)
    address.event = event
    return address


def shown(frame: bytes) -> bytes:
    """The beginning of a frame, for people; empty if it may contain a token, which is never shown."""
    return b"" if b"token" in frame or b"\\u00" in frame else frame[:200]


class Envelope:
    """Reads attributes, strictly or leniently.

    Args:
        limits: Maximum sizes.
        leniency: Tolerated violations.
        local: Known entities that may lack an authority; None for all.
    """

    def __init__(self, limits: Limits, leniency: Leniency, local: frozenset[str] | None) -> None:
        self._limits = limits
        self.leniency: Final = leniency
        self._local = local
        self.addresses: dict[tuple[str, str, str | None], Kind] = {}
        """Kinds by consistent type, source and sink. Bounded."""

    def usual(self, event: UsualEvent) -> Kind | None:
        """The kind of an event with consistent attributes; None if it needs a full check."""
        kind = self.addresses.get((event.type, event.source, event.sink)) or self.look(event.type, event.source, event.sink)
        if kind is _REQUEST and not (event.ttl and event.priority is not None and event.priority >= "CS4"):
            return None
        return kind

    def look(self, type: str, source: str, sink: str | None) -> Kind | None:
        """The kind for a consistent type, source and sink, then cached; otherwise None."""
        kind = TYPES.get(type)
        if kind is None:
            return None  # also for polybus extensions, which are rare and checked in full
        kind = "notification" if kind == "publish" and sink is not None else kind
        attributes = {"source": source} if sink is None else {"source": source, "sink": sink}
        facts = self._facts(attributes, kind)
        if any(violations(facts, _ADDRESS_RULES)):  # tolerated violations also need the full check, which marks them
            return None
        return remember(self.addresses, (type, source, sink), _KINDS[kind], _ADDRESSES)

    def _facts(self, attributes: dict[str, Any], kind: str) -> Facts:
        return Facts(attributes, kind, local=self._local, subject_limit=self._limits.subject, id_limit=self._limits.id)

    # -- everything else -------------------------------------------------------------------------------------------------

    def examined(self, attributes: dict[str, Any], raw: bytes | None, format: BodyFormat) -> EventMessage:
        """Check and convert an event. May raise `RemoteProtocolError`: a `Violation`, or data that do not match their type."""
        given = attributes.pop(TOLERATED, None)
        if given is not None and not isinstance(given, list):
            attributes[TOLERATED] = given  # a foreign value, refused later as an invalid name
            given = None
        tolerated = [*(given or ()), *normalise(attributes, self.leniency)]
        name = attributes.get("type")
        extension = KINDS.get(name) if isinstance(name, str) else None
        kind = "extension" if extension is not None else TYPES.get(name, "") if isinstance(name, str) else ""
        if kind == "publish" and "sink" in attributes:
            kind = "notification"
        facts = self._facts(attributes, kind)
        facts.has_data, facts.is_any = raw is not None, format is ANY
        for rule, seen in violations(facts):
            if rule.counts(self.leniency):
                raise Violation(rule, seen, answer_id=self._return_address(attributes), reply_id=_reply_id(attributes, kind))
            tolerated.append(rule.name)
        schema = attributes.get("dataschema")
        bare = raw is not None and format is ANY and not (is_packed(raw) if self.leniency and schema else check_any(raw))
        if raw is not None and bare:
            # The schema of the document's examples gives the data's type.
            if not (self.leniency is Leniency.LENIENT or (self.leniency and schema)):
                text = "the data is not a google.protobuf.Any (document, 3 Formats, Table 6)"
                error = refuse(text, "bad_protobuf", self._return_address(attributes))
                error.reply_id = _reply_id(attributes, kind)
                raise error
            tolerated.append(BARE_DATA)
            raw, format = bare_status(raw, schema) or (raw, OCTETS)
        made = self._message(attributes, kind, extension, raw, format)
        if tolerated:
            made.attributes[TOLERATED] = tolerated
        return made

    def _message(
        self, attributes: dict[str, Any], kind: str, extension: Kind | None, raw: bytes | None, format: BodyFormat
    ) -> EventMessage:
        ttl = attributes.get("ttl")
        seconds = ttl / 1000 if ttl else None
        if extension is not None:
            message = read_extension(extension, attributes, raw, format, self._limits)
            message.ttl = seconds
        elif kind == "request":
            message = Message(_REQUEST, attributes["sink"], attributes["id"], raw, format, None, seconds)
        elif kind == "response":
            message = _response(attributes, raw, format)
        else:
            message = Message(_KINDS[kind], attributes["source"], None, raw, format, None, seconds)
        del attributes["specversion"]
        made = EventMessage(
            message.kind, str(message.subject), message.id, message.raw, message.format, message.ttl, event_of(attributes)
        )
        made.code = message.code
        made.extras = {**attributes, **(message.extras or {})}
        made.headers = read_headers(made.attributes, self._limits.headers)
        return made

    def told(self, error: RemoteProtocolError, attributes: dict[str, Any]) -> RemoteProtocolError:
        """Add to a malformed event's error the request to answer, or the request that it answers."""
        error.answer_id = self._return_address(attributes)
        error.reply_id = _reply_id(attributes, "response" if attributes.get("type") == "res.v1" else "")
        return error

    def _return_address(self, attributes: dict[str, Any]) -> ReturnAddress | None:
        found = [attributes.get(name) for name in ("id", "source", "sink")]
        if attributes.get("type") != "req.v1" or not all(isinstance(part, str) for part in found):
            return None
        id, source, sink = map(str, found)
        try:
            if not self._can_answer(id) or not read_uri(source).is_response or not read_uri(sink).is_method:
                return None
        except UriError:
            return None
        if "*" in source or "*" in sink or max(len(source), len(sink)) > self._limits.subject:
            return None
        answer = self._facts({"source": sink, "sink": source}, "response")
        if any(rule.counts(self.leniency) for rule, _ in violations(answer, _ADDRESS_RULES)):
            return None  # the answer would break rules, too
        return return_address(UsualEvent("1.0", id, source, "req.v1", sink, "CS4", 0))

    def _can_answer(self, id: str) -> bool:
        version = id_version(id)
        return version in (6, 7, 8) or (version is not None and self.leniency > Leniency.STRICT)


def _reply_id(attributes: dict[str, Any], kind: str) -> str | None:
    reqid = attributes.get("reqid")
    return reqid if kind == "response" and isinstance(reqid, str) else None


def normalise(attributes: dict[str, Any], leniency: Leniency) -> list[str]:
    tolerated = []
    for name in [name for name, value in attributes.items() if value is None]:
        del attributes[name]  # null means absent (CloudEvents 1.0.2, JSON format, 3.1)
    ttl = attributes.get("ttl")
    if isinstance(ttl, str) and ttl.isascii() and ttl.isdigit() and len(ttl) < 11:
        attributes["ttl"] = int(ttl)  # from HTTP binary mode
    priority = attributes.get("priority")
    if isinstance(priority, str) and priority.startswith(_UPRIORITY):
        attributes["priority"] = priority.removeprefix(_UPRIORITY)  # written by up-python 1.5
    if leniency and OLD_LEVEL in attributes:
        attributes.setdefault("plevel", attributes.pop(OLD_LEVEL))
        tolerated.append("plevel.name")
    if leniency is Leniency.LENIENT and isinstance(hashed := attributes.get("hash"), str):
        attributes["hash"] = hashed.encode()  # protobuf: SDKs of that time wrote text in place of bytes
        tolerated.append("hash.type")
    return tolerated


def is_packed(data: bytes) -> bool:
    """True for an ``Any`` with a type, as all have. Another message's bytes may decode as an ``Any`` without one."""
    return check_any(data) and (not data or b"/" in data[2 : 2 + data[1]])


def bare_status(raw: bytes, schema: Any) -> tuple[bytes, BodyFormat] | None:
    """Pack a bare Status, as in the document's examples, which give its type in the schema; None for other data."""
    name = schema.removeprefix("/") if isinstance(schema, str) else ""
    return (pack(name, raw), ANY) if name in STATUSES else None


def _response(attributes: dict[str, Any], raw: bytes | None, format: BodyFormat) -> Message:
    """Read an answer: a result, a failed delivery (commstatus), or an application's error (google.rpc.Status)."""
    reqid, commstatus = attributes["reqid"], attributes.get("commstatus")
    try:
        status = read_status(raw) if format is ANY else None
    except ValueError as error:
        refused = refuse(f"the google.rpc.Status does not decode: {error}", "bad_protobuf")
        refused.reply_id = reqid
        raise refused from error
    if not commstatus and (status is None or status[0] == 0):
        return Message(_RESPONSE, "", reqid, raw, format)
    number, facts = status if status is not None else (0, {"text": "", "reason": None, "detail": None})
    code, unknown = code_of(commstatus or number)
    if unknown or not facts["text"]:
        facts["text"] = f"{unknown} {facts['text']}".strip() or f"the message was not delivered: {code.name}"
    return Message(Kind.ERROR, "", reqid, code=code if code is not Code.OK else Code.UNKNOWN, attributes=facts)
