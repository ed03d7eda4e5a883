"""The word of the engine that a publication is stored, or is not."""

from __future__ import annotations

from typing import Any

import msgspec


def read_stored(payload: bytes) -> dict[str, Any] | None:
    """Read what a stream says of a publication; None where this is somebody else's answer.

    That is an object with the name of the stream and the number there, or with an error (NATS documentation, "NATS JetStream
    wire API", ``io.nats.jetstream.api.v1.pub_ack_response``).
    """
    try:
        said = msgspec.json.decode(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    number, error = said.get("seq"), said.get("error")
    if isinstance(error, dict) and isinstance(error.get("err_code"), int):
        return said
    stored = isinstance(said.get("stream"), str) and isinstance(number, int) and number > 0 and error is None
    return said if stored else None
