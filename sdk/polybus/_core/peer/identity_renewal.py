"""Renewal of an identity that expires, by a hello with a new token, so that the link stays up."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import anyio
from msgspec import Struct

from ...errors import Forbidden, Unauthorized
from ...plugins import Admission

if TYPE_CHECKING:
    from ..link.ports import LinkDialer
    from .party import PeerParty

_TOKEN: Final = re.compile("[!-~]+")
"""A bearer token as a header can hold it: `authenticate` gets both in the same place."""
_RENEWED: Final = 0.8
"""Part of the time until an identity expires after which a client shows a new token."""
_LONGEST_TIME: Final = 10**15
"""Maximal milliseconds until an identity expires: no date of Python is later. A larger number is ignored."""
_SOONEST: Final = 1.0
"""Minimal seconds before a client shows a new token."""
_PAUSE: Final = 0.5
"""Average seconds between two tokens of a connection that a server checks. It ignores other tokens."""
_BURST: Final = 4
"""Tokens that a server checks without a pause."""


class Renewal(Struct, eq=False):
    """Renewal over one connection, at the client's or the server's end."""

    _peer: PeerParty
    busy: bool = False
    """True while the client waits to show a new token, or `authenticate` checks one of the peer."""
    _next: float = 0.0
    """Time from which the server takes tokens at the average rate, without a burst."""

    def plan(self, expires_in: Any, dialer: LinkDialer, send: Callable[[dict[str, Any]], Any]) -> None:
        """Show the next token in time. `expires_in` comes from the server, in milliseconds."""
        if isinstance(expires_in, (int, float)) and not isinstance(expires_in, bool) and 0 <= expires_in <= _LONGEST_TIME:
            if not self.busy:
                self.busy = True
                self._peer.spawn(self._show, dialer, max(expires_in / 1000 * _RENEWED, _SOONEST), send)

    async def _show(self, dialer: LinkDialer, seconds: float, send: Callable[[dict[str, Any]], Any]) -> None:
        await anyio.sleep(seconds)
        facts = await dialer.renewal()
        self.busy = False
        if facts is not None:
            send(facts)

    def token(self, given: Any) -> str | None:
        """Return a new token for `check`; None without one, while `authenticate` checks another one, or after too many."""
        runtime = self._peer.link.runtime
        if self.busy or not isinstance(given, str) or runtime.time() < self._next - (_BURST - 1) * _PAUSE:
            return None
        fits = len(given) <= runtime.limits.headers and _TOKEN.fullmatch(given)
        return given if fits else None

    async def check(self, token: str) -> bool:
        """Adopt the identity that `authenticate` returns. If it refuses the token, close the link and return False."""
        peer, link = self._peer, self._peer.link
        assert link.admission is not None
        try:
            outcome = await link.services.access.renew(link.admission, token)
        finally:
            self.busy = False
            self._next = max(self._next, link.runtime.time()) + _PAUSE
        if not peer.connected:
            return False
        if isinstance(outcome, (Unauthorized, Forbidden)):
            link.turn_away(outcome, outcome.text)
            return False
        if isinstance(outcome, Admission):  # otherwise `authenticate` failed, and the answer says how much time is left
            link.renew(outcome)
        return True
