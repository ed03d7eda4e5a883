"""Creates responses and error answers to a peer's requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ...errors import BusError, Code
from ...headers import check_headers
from ...message import Kind, Message
from ...outcomes import facts_of
from ..runtime.memory_budgets import LARGE

if TYPE_CHECKING:
    from ..link.link import Link
    from ..rpc.call import Call
    from .peer_core import PeerCore

_RESPONSE: Final = Kind.RESPONSE
"""Cached enum member, because accessing one is a function call."""


def response_to(message: Message, value: Any, link: Link, call: Call | None = None) -> Message:
    """Return the encoded response to a request. `call` is None for the bus's own requests."""
    response = Message(_RESPONSE, message.subject, message.id, None, link.format)
    response.reply_to = message.reply_to
    if message.answer_headers and link.carries_headers:
        response.headers = check_headers(message.answer_headers, link.runtime.limits.headers)
    if call is not None and call.forwards and isinstance(value, Message):
        # A bridge passes the answer on unchanged if the protocol allows it.
        if value.headers:
            response.headers = {**value.headers, **(response.headers or {})}
        response.raw, response.format, response.decoded = value.raw, value.format, value.decoded
        response.checked = value.checked
        if value.raw is None and value.has_body:
            response.format = chosen = link.format_for(value.body, message.subject)
            response.raw = response.checked = chosen.encode(value.body)
    elif value is not None:
        if not link.one_format:
            response.format = link.format_for(value, message.subject)
        response.raw = response.checked = response.format.encode(value)
    if call is not None:
        answers, raw = call.handler.answers, response.raw
        if answers.weight or (raw is not None and len(raw) > LARGE):
            answers.learn(len(raw or b""), link.runtime.time())
    return response


def send_error(
    peer: PeerCore,
    message: Message,
    code: Code,
    text: str,
    reason: str | None = None,
    detail: Any = None,
    kind: Kind = Kind.ERROR,
    *,
    delivered: bool = False,
) -> None:
    """Answer a message with an error. `delivered` is True if a handler raised the error."""
    link = peer.link
    if not delivered:
        link.services.dead_letter(peer.public, message, code, text)
    for facts in facts_of(text, reason, detail):
        if not delivered:
            facts["undelivered"] = True
        error = Message(kind, message.subject, message.id, code=code, attributes=facts)
        error.reply_to = message.reply_to
        try:
            link.answer(error, peer)
        except BusError:
            continue
        return
    link.services.counters.dropped += 1


def refuse_duplicate(peer: PeerCore, message: Message, now: float) -> None:
    link = peer.link
    text = f"the id of this {message.kind.value} for {message.subject!r} is still in flight"
    link.refused("duplicate_id", text, now, peer.key)
    if link.session is not None and link.session.capabilities.answers_duplicates:
        kind = Kind.END if message.kind is Kind.OPEN else Kind.ERROR
        text = "this id is still in flight: ids must be unique"
        send_error(peer, message, Code.ALREADY_EXISTS, text, "duplicate_id", kind=kind)
