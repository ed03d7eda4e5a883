"""Controls access with connection limits and the `authenticate` and `authorize` hooks. An error in a hook denies access."""

from __future__ import annotations

import datetime
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from attrs import evolve

from ..._util.event_loop import is_foreign_exception
from ..._util.listening import network_of
from ..._util.logs import Warnings, log_fields
from ..._validation import check_callable, shown
from ...errors import BadRequest, BusError, Forbidden, NotFound, RequestError, TooManyRequests, Unauthorized, Unavailable
from ...plugins import Admission, Handshake, Identity
from ...subjects import canonical, is_pattern

if TYPE_CHECKING:
    from ...limits import Limits
    from ...message import Message
    from .ports import CallingPeer

logger: logging.Logger = logging.getLogger("polybus.security")

Authenticate: TypeAlias = Callable[[Handshake], Any]
"""``authenticate(handshake)`` returns the identity, which can be any value or an `Identity`. It returns None or another empty
value to reject the client, and True for an anonymous client."""
Authorize: TypeAlias = "Callable[[Any, str, Any], bool | Awaitable[bool]] | Callable[..., bool | Awaitable[bool]]"
"""``authorize(peer, verb, subject)`` returns True to allow an action. The hook can have a ``message`` parameter, which receives
the message or None."""

_REMEMBERED = 1024
_CREDENTIALS: Final = ("authorization", "cookie")
_SECRET: Final = 6
"""Minimum length of words in credentials that the log hides. Shorter ones are names such as `Bearer`."""
_ABOUT_HANDLERS = ("request", "notify", "stream", "channel", "tunnel")
"""The subjects of these verbs are spelled as the handler registered them, so they need no normalisation."""


class AccessControl:
    def __init__(self, authenticate: Authenticate | None, authorize: Authorize | None, seconds: float) -> None:
        """Check the hooks. Raises `TypeError` if a hook cannot be called with its arguments."""
        check_callable(authenticate, "authenticate", "authenticate(handshake)", 1)
        self._wants_message = authorize is not None and _has_parameter(authorize, "message")
        named = {"message": None} if self._wants_message else {}
        check_callable(authorize, "authorize", "authorize(peer, verb, subject) -> bool", 3, **named)
        if isinstance(authorize, type):
            raise TypeError(f"authorize={shown(authorize)} is a class, which would allow everything: pass an instance")
        self._seconds = seconds  # timeout of `authenticate`
        self.authenticate: Authenticate | None = authenticate
        self.authorize: Authorize | None = authorize
        self.warnings: Warnings = Warnings()
        self._told: set[str] = set()

    async def admit(self, handshake: Handshake) -> Admission | BusError:
        """Authenticate a new connection. If the hook fails or times out, return `Unavailable` so that the client retries."""
        if self.authenticate is None:
            return Admission(Identity(), handshake)
        return self._told_refusal(await self._asked(self.authenticate, handshake), handshake)

    async def renew(self, admission: Admission, token: str) -> Admission | BusError:
        """Authenticate a client with a new token. The token must belong to the same user."""
        assert self.authenticate is not None
        handshake = evolve(admission.handshake, headers={**admission.handshake.headers, "authorization": f"Bearer {token}"})
        outcome = await self._asked(self.authenticate, handshake)
        if isinstance(outcome, Admission) and not _is_same(outcome.identity, admission.identity):
            outcome = Unauthorized("the token is that of another user")
        return self._told_refusal(outcome, handshake)

    def _told_refusal(self, outcome: Admission | BusError, handshake: Handshake) -> Admission | BusError:
        if isinstance(outcome, (Unauthorized, Forbidden)):
            client = f"{handshake.address or 'a client'} ({handshake.protocol}+{handshake.transport})"
            why, fields = _refusal(outcome, handshake), _of_handshake(handshake)
            self.warnings.warn(logger, "refused %s: %s", client, why, about="identity", extra=fields)
        return outcome

    def turned_away(self, address: str, why: str, about: str) -> None:
        """Log that a client was rejected, with a rate limit for each kind."""
        self.warnings.warn(logger, "refused %s: %s", address, why, about=about, extra=log_fields(address=address))

    def denied(self, peer: CallingPeer, verb: str, subject: str | int) -> None:
        """Log that an action of a peer was denied, with a rate limit for each verb."""
        text, fields = "refused %s of %r to %s: authorize does not allow it", log_fields(peer, subject=subject)
        self.warnings.warn(logger, text, verb, subject, str(peer), about=verb, level=logging.INFO, extra=fields)

    def trusts(self, what: str) -> bool:
        """Return True if clients have identities but there is no `authorize`, and no warning about this has been logged.

        There is one warning about each of ``publish`` and ``subscribe``.
        """
        return self.authenticate is not None and self.authorize is None and what not in self._told

    def reached(self, peer: CallingPeer, subject: str | int, handler: str) -> None:
        """Warn once that a publication reaches a handler without authorization."""
        text = (
            "%s published %.100r, which reaches the on handler %s: Bus(authorize=...) is missing, so every client that is let "
            "in may do that; pass it, or register what only this bus publishes with peers=False"
        )
        if self._is_first("publish", peer):
            logger.warning(text, str(peer), subject, handler, extra=log_fields(peer, subject=subject))

    def subscribed(self, peer: CallingPeer, pattern: str | int) -> None:
        """Warn once that a client subscribed to a wildcard without authorization."""
        text = (
            "%s subscribed to %.100r: Bus(authorize=...) is missing, so every client that is let in receives all that is "
            "published there; pass it, and decide about subscribe and deliver"
        )
        if is_pattern(pattern) and self._is_first("subscribe", peer):
            logger.warning(text, str(peer), pattern, extra=log_fields(peer, subject=pattern))

    def _is_first(self, what: str, peer: CallingPeer) -> bool:
        # A link that this bus opened may lead to clients behind a broker.
        first = self.trusts(what) and (not peer.link.upstream or peer.identity is not None)
        if first:
            self._told.add(what)
        return first

    async def _asked(self, authenticate: Authenticate, handshake: Handshake) -> Admission | BusError:
        try:
            identity = authenticate(handshake)
            if inspect.isawaitable(identity):
                with anyio.move_on_after(self._seconds) as scope:
                    identity = await identity
                if scope.cancelled_caught:
                    text = "authenticate took more than %g s (Limits.handshake_timeout)"
                    self.warnings.warn(logger, text, self._seconds, extra=_of_handshake(handshake))
                    return Unavailable("authentication took too long")
        except (Unauthorized, Forbidden) as error:
            return error
        except (NotFound, BadRequest):  # raised by a service that the hook calls
            return Unauthorized("not authenticated")
        except BaseException as error:  # a new connection must not end the server
            _raise_unless_foreign(error)
            text = "authenticate failed, which refuses the connection"
            self.warnings.warn(logger, text, error=error, extra=_of_handshake(handshake))
            return Unavailable("this server cannot authenticate you now: try again later")
        if identity is True:  # don't use it as a value, because True equals 1
            return Admission(Identity(), handshake)
        if _is_empty(identity):
            if identity is not None and identity is not False:
                hollow = "authenticate returned %s, which identifies no client: the connection is refused"
                self.warnings.warn(logger, hollow, shown(identity), extra=_of_handshake(handshake))
            return Unauthorized("not authenticated")
        if isinstance(identity, Identity) and identity.expires_at is not None:
            if not isinstance(identity.expires_at, datetime.datetime) or identity.expires_at.utcoffset() is None:
                text = "Identity(expires_at=...) must be an aware datetime; the connection is refused"
                self.warnings.warn(logger, text, extra=_of_handshake(handshake))
                return Unauthorized("not authenticated")
            if identity.expires_at <= datetime.datetime.now(datetime.UTC):
                return Unauthorized("the identity has expired: authenticate again")
        if not isinstance(identity, Identity):
            identity = Identity(identity, key=identity if isinstance(identity, str) else None)
        return Admission(identity, handshake)

    def asks(self, peer: CallingPeer, verb: str, subject: str | int, message: Message | None = None) -> bool | Awaitable[bool]:
        """Call `authorize` and return its result. The result may be an awaitable."""
        assert self.authorize is not None
        if peer.link.inner:  # messages of the bus itself
            return True
        if isinstance(subject, str) and "/" in subject and verb not in _ABOUT_HANDLERS:
            subject = canonical(subject)
        try:
            if self._wants_message:
                with_message: Callable[..., bool | Awaitable[bool]] = self.authorize
                allowed = with_message(peer.public, verb, subject, message=message)
            else:
                allowed = self.authorize(peer.public, verb, subject)
        except BaseException as error:
            _raise_unless_foreign(error)
            text, fields = "authorize(%r, %r, %r) failed, which refuses", log_fields(peer, subject=subject)
            self.warnings.warn(logger, text, peer, verb, subject, error=error, extra=fields)
            return False
        self._check_given(allowed)
        return allowed

    def _check_given(self, allowed: Any) -> None:
        if allowed is None:
            # probably a missing return statement
            text = "authorize=%s returned None, which refuses: return True or False in each case"
            self.warnings.warn(logger, text, shown(self.authorize), about="no answer")

    async def answer(self, allowed: bool | Awaitable[bool]) -> bool:
        if not inspect.isawaitable(allowed):
            return bool(allowed)
        try:
            given = await allowed
        except BaseException as error:
            _raise_unless_foreign(error)
            self.warnings.warn(logger, "authorize failed, which refuses", error=error)
            return False
        self._check_given(given)
        return bool(given)

    async def may(self, peer: CallingPeer, verb: str, subject: str | int, message: Message) -> bool:
        return self.authorize is None or await self.answer(self.asks(peer, verb, subject, message))

    def may_receive(self, peer: CallingPeer, subject: str | int) -> bool | Awaitable[bool]:
        """Return whether a peer may receive publications to a subject, or an awaitable. Results are cached for each peer."""
        if isinstance(subject, str) and "/" in subject:
            subject = canonical(subject)
        known = peer.grants
        if known is None:
            known = peer.grants = {}
        allowed = known.get(subject)
        if allowed is None:
            answer = self.asks(peer, "deliver", subject)
            if inspect.isawaitable(answer):
                return self._remember_later(known, subject, answer)
            allowed = _remember(known, subject, bool(answer))
        return allowed

    async def _remember_later(self, known: dict[str | int, bool], subject: str | int, answer: Awaitable[bool]) -> bool:
        return _remember(known, subject, await self.answer(answer))


def _refusal(error: RequestError, handshake: Handshake) -> str:
    """Return the reason for rejecting a client, for the log. It names the kinds of credentials without their values."""
    text = str(error)
    for name in _CREDENTIALS:
        for word in handshake.headers.get(name, "").replace(";", " ").replace("=", " ").split():
            if len(word) >= _SECRET:
                text = text.replace(word, "***")
    brought = [name for name in _CREDENTIALS if name in handshake.headers]
    if handshake.tls_peer:
        brought.append("a client certificate")
    brought += [f"the parameter {name!r}" for name in handshake.params]
    return f"{text}; credentials sent: {', '.join(brought) or 'none'}"


def _is_same(one: Identity, other: Identity) -> bool:
    if one.key is not None or other.key is not None:
        return one.key == other.key
    try:
        return bool(one.value == other.value)
    except Exception:  # comparing an object such as an array does not return a bool
        return False


def _is_empty(identity: Any) -> bool:
    """Return True for values without an identity: None, False, ``""``, 0, empty containers, or an `Identity` of these."""
    if isinstance(identity, Identity):
        return _is_empty(identity.value) and not identity.key
    try:
        return not identity
    except Exception:  # an object without a truth value, such as an array
        return False


def _remember(known: dict[str | int, bool], subject: str | int, allowed: bool) -> bool:
    if len(known) >= _REMEMBERED:
        known.clear()
    known[subject] = allowed
    return allowed


def _has_parameter(function: Callable[..., Any], name: str) -> bool:
    try:
        return name in inspect.signature(function).parameters
    except Exception:  # some C functions have no signature, and the error of others shows their repr
        return False


def _of_handshake(handshake: Handshake) -> dict[str, object]:
    return log_fields(address=handshake.address, protocol=handshake.protocol)


def _raise_unless_foreign(error: BaseException) -> None:
    """Reraise cancellations. Exceptions from the hook itself are logged instead."""
    if not is_foreign_exception(error):
        raise error


class Admissions:
    """Counts the connections of a gate, including connections that are still in their handshake."""

    __slots__ = ("_limits", "handshakes", "networks")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.handshakes: int = 0
        self.networks: Counter[str] = Counter()

    def knock(self, address: str, connections: int) -> TooManyRequests | None:
        """Count a new connection, or return the error to reject it with. `connections` is the number of open ones."""
        limits, network = self._limits, network_of(address)
        if self.handshakes >= limits.handshakes:
            return TooManyRequests(f"{self.handshakes} handshakes are under way (Limits.handshakes)", reason="handshakes")
        if connections >= limits.peers:
            return TooManyRequests(f"{limits.peers} connections are open (Limits.peers)")
        if self.networks[network] >= limits.peers_per_address:
            return TooManyRequests(f"{limits.peers_per_address} connections from {network} (Limits.peers_per_address)")
        self.handshakes += 1
        self.networks[network] += 1
        return None

    def left(self, address: str) -> None:
        """Stop counting a connection that ended during its handshake."""
        self.handshakes -= 1
        self.gone(address)

    def opened(self) -> None:
        """Stop counting a handshake, because it is complete."""
        self.handshakes -= 1

    def gone(self, address: str) -> None:
        """Stop counting a connection that has ended."""
        network = network_of(address)
        self.networks[network] -= 1
        if self.networks[network] <= 0:
            del self.networks[network]
