"""Messages between buses of ours that uProtocol does not have: subscriptions, cancelling, streams and channels.

Each is a CloudEvent with a type of its own, never sent to a peer that has not shown to be ours. ``reqid`` names the request or
channel, ``subject`` (an attribute of CloudEvents) the pattern of a subscription; an ``open`` has the sink of a request.
"""

from __future__ import annotations

from typing import Any, Final

from ....body import BodyFormat
from ....limits import Limits
from ....message import Kind, Message
from ..._protobuf.status import code_of
from ..._rules import MODES, fault_in_subject
from ..status import read_status, write_status
from .checks import WIRE_RULES, refuse

NAMES: Final = {
    kind: f"polybus.{kind.value}.v1"
    for kind in (Kind.SUBSCRIBE, Kind.UNSUBSCRIBE, Kind.CANCEL, Kind.OPEN, Kind.ITEM, Kind.CREDIT, Kind.END)
}
"""Types of their events."""
KINDS: Final = {name: kind for kind, name in NAMES.items()}


def read_extension(kind: Kind, attributes: dict[str, Any], raw: bytes | None, format: BodyFormat, limits: Limits) -> Message:
    """The message of one. May raise `RemoteProtocolError`: a member is missing or wrong."""
    if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
        subject = attributes.get("subject")
        if not subject or fault_in_subject(subject, limits.subject) is not None:
            raise refuse("subject is a pattern of 1 byte to Limits.subject, without control characters", "invalid_subject")
        return Message(kind, subject)
    if kind is Kind.OPEN:
        return _read_open(attributes, raw, format)
    reqid = attributes.get("reqid")
    if reqid is None:
        raise refuse(f"reqid is missing in this {NAMES[kind]}", "missing_attribute")
    if kind is Kind.CREDIT:
        credit = WIRE_RULES.read_count(attributes.get("credit"), "credit", least=1)
        return Message(kind, "", reqid, attributes={"credit": credit})
    if kind is Kind.END:
        return _read_end(reqid, raw)
    return Message(kind, "", reqid, raw, format)


def _read_open(attributes: dict[str, Any], raw: bytes | None, format: BodyFormat) -> Message:
    if attributes.get("mode") not in MODES or "sink" not in attributes:
        raise refuse(f"an open has a sink, and its mode is one of {', '.join(MODES)}")
    counts = {name: WIRE_RULES.read_count(attributes.get(name), name) for name in ("credit", "hops")}
    facts = {"mode": attributes["mode"], **counts}
    return Message(Kind.OPEN, attributes["sink"], attributes["id"], raw, format, attributes=facts)


def _read_end(reqid: str, raw: bytes | None) -> Message:
    try:
        status = read_status(raw)
    except ValueError as error:
        raise refuse(f"the google.rpc.Status does not decode: {error}") from error
    if status is None or status[0] == 0:
        return Message(Kind.END, "", reqid)
    code, _ = code_of(status[0])
    return Message(Kind.END, "", reqid, code=code, attributes=status[1])


def extension_attributes(message: Message) -> tuple[dict[str, Any], bytes | None]:
    """Attributes besides id, source and sink; data that are no body. May raise `EncodeError`: of a detail."""
    kind, given = message.kind, message.attributes
    attributes: dict[str, Any] = {"type": NAMES[kind]}
    if kind is Kind.SUBSCRIBE or kind is Kind.UNSUBSCRIBE:
        attributes["subject"] = message.subject
        return attributes, None
    if kind is Kind.OPEN:
        attributes.update(mode=given.get("mode", "channel"), credit=given.get("credit", 0), hops=given.get("hops", 0))
        return attributes, None
    attributes["reqid"] = message.id
    if kind is Kind.CREDIT:
        attributes["credit"] = given.get("credit", 0)
    if kind is Kind.END and message.code:
        return attributes, write_status(message)
    return attributes, None
