"""The one-time tokens with which a WebSocket shows to which session it belongs (J.REP notes, section 2.4)."""

from __future__ import annotations

import hmac
import secrets
from collections import deque
from typing import Final

_MOST: Final = 6
"""Of a session, as on a real server."""


class Tokens:
    """Tokens of one session."""

    def __init__(self) -> None:
        self._known: deque[str] = deque(maxlen=_MOST)

    def new(self) -> str:
        """One that serves once; the oldest of many serves no more."""
        token = secrets.token_urlsafe(16)
        self._known.append(token)
        return token

    def use(self, token: object) -> bool:
        """Use up a token; True if it was one of these."""
        if isinstance(token, str):
            for known in self._known:
                if hmac.compare_digest(known.encode(), token.encode("utf-8", "surrogatepass")):
                    self._known.remove(known)
                    return True
        return False
