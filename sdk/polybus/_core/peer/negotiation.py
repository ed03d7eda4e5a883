"""Exchanges hellos with a peer, to find out whether it runs polybus and to send it facts and new tokens."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

import anyio
from msgspec import Struct

from ...errors import (
    BusError,
    Code,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    QueueFull,
    RequestCancelled,
    Unauthorized,
    Unsupported,
)
from ...message import Kind, Message
from ...plugins import Admission
from ...plugins.hello import HELLO, answer_of, is_answer, question_of, retry_of
from ...subjects import wire_pattern
from ..rpc.reply import Reply, error_of
from .responses import response_to, send_error

if TYPE_CHECKING:
    from ...plugins.extensions import Resumption
    from ..link.ports import LinkDialer
    from .peer_core import PeerCore
    from .ports import PeerPubSub

HELLO_TIMEOUT: Final = 1.0
"""Seconds that a verb waits for the answer to a hello. A later answer still counts."""

_TOKEN: Final = re.compile("[!-~]+")
"""Pattern of bearer tokens that are valid in a header, because `authenticate` receives tokens there."""
_RENEWED: Final = 0.8
"""Fraction of the time until an identity expires after which a client sends a new token."""
_LONGEST_TIME: Final = 10**15
"""Maximum number of milliseconds until an identity expires. Larger numbers are beyond Python's latest date and ignored."""
_SOONEST: Final = 1.0
"""Minimum seconds until a client sends a new token."""
_PAUSE: Final = 0.5
"""Average number of seconds between tokens that a server checks on a connection. Tokens beyond this rate are ignored."""
_BURST: Final = 4
"""Number of tokens that a server checks without a pause."""


class Renewal(Struct, eq=False):
    """Renews an identity on an open connection, for the client as well as the server, so that the link stays up."""

    _peer: PeerCore
    busy: bool = False
    """True while the client waits to send a new token, or `authenticate` checks a token."""
    _next: float = 0.0
    """Time at which the server accepts tokens again, apart from bursts."""

    def plan(self, expires_in: Any, dialer: LinkDialer, send: Callable[[dict[str, Any]], Any]) -> None:
        """Schedule the next token. The server sends `expires_in`, in milliseconds."""
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
        """Return a token to check. Returns None if it is invalid, another check is running, or there were too many."""
        runtime = self._peer.link.runtime
        if self.busy or not isinstance(given, str) or runtime.time() < self._next - (_BURST - 1) * _PAUSE:
            return None
        fits = len(given) <= runtime.limits.headers and _TOKEN.fullmatch(given)
        return given if fits else None

    async def check(self, token: str) -> bool:
        """Adopt the identity that `authenticate` returns for a token. If it is rejected, close the link and return False."""
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


class ExtensionProbe(Reply[Any], eq=False, kw_only=True):
    """A hello that has not been answered. Cancelling the tasks that wait for it does not cancel the hello."""

    _tells_failure: ClassVar[bool] = False
    _peer: PeerCore

    def cancel(self) -> bool:
        return False

    def resolve(self, message: Message) -> None:
        try:
            answer = message.body
        except BusError:
            answer = None
        self._peer.negotiation.answered(answer)
        super().resolve(message)

    def reject(self, message: Message, now: float, *, own: bool = False) -> None:
        self.fail(error_of(message, self.subject, now - self.started, own=own))

    def fail(self, error: BusError) -> None:
        peer = self._peer
        peer.negotiation.takes_note(None)
        peer.link.runtime.bus_identities.take_proof(peer, None)
        if self.sent and not isinstance(error, (Disconnected, RequestCancelled, QueueFull)):  # these say nothing about the peer
            peer.negotiation._heed({})
            if peer.speaks_extensions is None:
                if isinstance(error, DeadlineExceeded):
                    peer.negotiation.silent = True
                else:
                    peer.negotiation.speaks_extensions = False
        super().fail(error)


_LATE: Final = 30
"""Maximum number of unanswered hellos to remember. One is sent per second, so answers may be this many seconds late."""
_LONGEST_TOKEN: Final = 200
"""Maximum length of a token for resuming a session."""
_TURN: Final = 64
"""Number of hellos to answer before other tasks can run."""
_CONFIRMED: Final = 1024
"""Maximum number of patterns in a hello."""


class Negotiation(Struct, eq=False):
    """Sends and answers hellos, and stores the facts from them."""

    _peer: PeerCore
    speaks_extensions: bool | None = None
    """True if the peer runs polybus. None until a hello arrives or is answered."""
    answers_only: bool = False
    """True if the peer can only answer on this connection."""
    passes_on: bool | None = False
    """True if the peer forwards publications to other buses. None while the first hello is unanswered."""
    silent: bool = False
    """True if the peer didn't answer a hello in time."""
    probe: ExtensionProbe | None = None
    _late: dict[Any, ExtensionProbe] | None = None
    _deferred: deque[Message] | None = None
    """Hellos that can only be answered once the bus knows which other peers are the same bus."""
    _token: str | None = None
    """Token for resuming this session at another bus, after this bus has closed the connection."""
    _resumes: str | None = None
    """Token from the previous connection, kept until the peer answers a hello that contains it."""
    _resuming: bool = False
    """True from sending the token until all subscriptions have been sent."""
    _renewal: Renewal | None = None

    @property
    def _pubsub(self) -> PeerPubSub:
        return self._peer.host.pubsub

    # -- asking ----------------------------------------------------------------------------------------------------------

    async def extended(self) -> bool:
        if self.speaks_extensions is None:
            await _told(self.ask())
            return bool(self._peer.speaks_extensions)  # not `self`, because a lost connection replaces the negotiation
        return self.speaks_extensions

    async def reads_headers(self) -> bool:
        """Return True if requests may have headers. If this is not known yet, send a hello and wait for the answer once."""
        peer = self._peer
        link = peer.link
        session = link.session if link.session is not None else link.adapter.session("client", link.runtime.limits)
        if not session.capabilities.asks_before_headers:
            return session.capabilities.headers
        if self.silent and peer.connected:
            _ = self.ask()  # without waiting, but a later answer counts
            return False
        return await self.extended()

    def ask(self, *, again: bool = False) -> ExtensionProbe:
        """Send a hello unless one is in flight, which limits the rate to one per second. Set `again` for a new connection."""
        peer, probe, ahead = self._peer, self.probe, self._ahead
        if probe is None or probe.done() or (ahead and not probe.sent):
            to_tell = self._pubsub.announcer.to_tell(peer, again=again)
            probe = self.probe = self._send({"subscribes": to_tell} if to_tell else {}, ahead=ahead)
        return probe

    @property
    def _ahead(self) -> bool:
        peer, link = self._peer, self._peer.link
        return peer.connected and link.session is not None and link.initiates and not link.flowing

    async def confirm(self, patterns: list[str | int] | None = None) -> list[str | int]:
        """Send a hello, and return the patterns that the peer rejected. By then, the peer has handled all earlier messages."""
        answer = await _told(self._send({"confirm": patterns} if patterns else {}))
        refused = answer.get("refused", []) if isinstance(answer, dict) else []
        return refused if isinstance(refused, list) else []

    def tell(self) -> None:
        _ = self._send({})

    def greet(self) -> None:
        """Send a hello as the first message on a new connection if the peer needs its facts.

        A bus that forwards publications needs their routes. Some protocols send routes only to polybus peers. The token for
        resuming a session must arrive before the subscriptions.
        """
        session = self._peer.link.session
        if session is not None and self.speaks_extensions is not False:
            asks = self.speaks_extensions and session.capabilities.asks_before_publishing
            first = self._peer.link.greets and not self._peer.link.inner and session.capabilities.extensions
            if self._pubsub.passes_on or asks or first or self._resumes is not None:
                _ = self.ask(again=True)
            if self._resumes is not None:  # subscriptions are sent in this event loop iteration
                self._peer.link.runtime.call_soon(self._restored)

    def _restored(self) -> None:
        if self._resuming:
            self._resuming = False
            _ = self._send({"resumed": True}, ahead=self._ahead)

    def _send(self, facts: dict[str, Any], *, ahead: bool = False) -> ExtensionProbe:
        peer = self._peer
        link = peer.link
        if self._pubsub.passes_on:
            facts["passes"] = True
        if self.speaks_extensions is None and self.passes_on is False:
            self.passes_on = None
            self._pubsub.publisher.routes.clear()
        if self._resumes is not None and not self._resuming and peer.connected:
            facts["resume_token"], self._resuming = self._resumes, True
        body = question_of(peer.id, **facts)
        runtime = link.runtime
        now = runtime.time()
        probe = ExtensionProbe(runtime.loop, HELLO, Any, now, now + HELLO_TIMEOUT, _peer=peer)
        message = Message(Kind.REQUEST, HELLO, None, None, link.format, None, runtime.ttl(now, probe.deadline))
        probe.on_cancel = peer.abandoned
        if link.upstream:
            body |= runtime.bus_identities.introduction(peer)
        try:
            message.format = chosen = link.format_for(body, HELLO)
            message.raw = message.checked = chosen.encode(body)
            if ahead:
                link.send_request(message, probe, peer, now)
            else:
                link.request(message, probe, peer)
        except BusError as error:  # the protocol doesn't support it, or the link is down
            probe.fail(error)
        return probe

    # -- answers ---------------------------------------------------------------------------------------------------------

    def answered(self, answer: Any) -> None:
        identities = self._peer.link.runtime.bus_identities
        if is_answer(answer):
            self.answers_only = answer.get("answers_only") is True
            token = answer.get("resume_token")
            self._token = token if isinstance(token, str) and len(token) <= _LONGEST_TOKEN else None
            self._resumes = None
            self._heed(answer)
            identities.take_proof(self._peer, answer.get("proof"))
            self.takes_note(answer)
            self.is_ours(answer.get("subscribes"))
        else:
            self._heed({})
            self.takes_note(None)
            self.speaks_extensions = False
            identities.take_proof(self._peer, None)

    def _heed(self, answer: dict[str, Any]) -> None:
        """Adopt the server's reconnect pauses, and schedule a new token if this bus's identity expires.

        Answers from other clients, behind a broker or on a fabric, are ignored, because they must not change the link or
        receive the token.
        """
        link = self._peer.link
        if link.dialer is not None and not link.crowded:
            link.dialer.told_retry(answer.get("retry"))
            self.renewal.plan(answer.get("expires_in"), link.dialer, self._send)

    @property
    def renewal(self) -> Renewal:
        if self._renewal is None:
            self._renewal = Renewal(self._peer)
        return self._renewal

    def takes_note(self, facts: Any) -> None:
        """Record whether the peer forwards publications. Must be called before the peer receives any."""
        passes = isinstance(facts, dict) and facts.get("passes") is True
        if passes:
            self._pubsub.publisher.join_net()
        elif self.passes_on is None:
            self._pubsub.publisher.routes.clear()
        self.passes_on = self.passes_on or passes

    def is_ours(self, subscribes: Any = None) -> None:
        """Record that the peer runs polybus, and how many subscriptions it will send."""
        peer, pubsub = self._peer, self._pubsub
        late = self.silent
        self.speaks_extensions, self.silent = True, False
        if peer.key is None and peer.link.session is not None:
            peer.link.set_shared()
        pubsub.recipients.confirm(peer, subscribes)
        if late:
            pubsub.announcer.confirm_late(peer)

    def unsupported(self, without: str) -> Unsupported:
        """Return the error for a verb that requires a polybus peer. `without` describes what other peers can do."""
        session = self._peer.link.session
        if self.speaks_extensions is None and (session is None or session.capabilities.extensions):
            return Unsupported(
                f"{self._peer!r} has not answered for {HELLO_TIMEOUT:.0f} s: it may be a bare peer, or busy; {without} until "
                "it has said that it is a polybus peer: try again later"
            )
        return Unsupported(f"{self._peer!r} is not a polybus peer: {without}")

    def unanswered(self, probe: ExtensionProbe) -> None:
        late = self._late = self._late if self._late is not None else {}
        late[probe.key] = probe
        session = self._peer.link.session
        if len(late) > _LATE and session is not None:
            oldest = next(iter(late))
            del late[oldest]
            self._peer.link.forget(oldest)

    def late_answer(self, id: Any) -> ExtensionProbe | None:
        return self._late.pop(id, None) if self._late else None

    def lost(self) -> None:
        self._resumes, self._token, self._resuming = self._token or self._resumes, None, False
        self.probe = self._late = None
        self.silent = False
        self._renewal = None

    # -- hellos of the peer ----------------------------------------------------------------------------------------------

    def asked(self, message: Message) -> None:
        peer = self._peer
        try:
            self.takes_note(message.body)
        except BusError as error:  # some protocols parse bodies lazily
            send_error(peer, message, Code.INVALID_ARGUMENT, f"invalid hello: {error}")
            return
        resumption = peer.host.resumption
        if resumption is not None and not peer.link.upstream:
            self._resumed(message, resumption)
        if (token := self._token_of(message)) is not None and peer.hold(message):
            self.renewal.busy = True
            peer.spawn(self._renew, message, token)
        elif not self._is_to_wait(message) or not peer.hold(message):  # if too many hellos wait, answer immediately
            self._answer(message)
        elif self._deferred is None:
            self._deferred = deque((message,))
            peer.spawn(self._answer_later, self._deferred)
        else:
            self._deferred.append(message)

    def _token_of(self, message: Message) -> str | None:
        link, body = self._peer.link, message.body
        if link.admission is None or link.expires is None or link.crowded or not isinstance(body, dict):
            return None
        return self.renewal.token(body.get("token"))

    async def _renew(self, message: Message, token: str) -> None:
        try:
            goes_on = await self.renewal.check(token)
        finally:
            self._peer.release(message)
        if goes_on:
            self._answer(message)

    def _resumed(self, message: Message, resumption: Resumption) -> None:
        body = message.body if isinstance(message.body, dict) else {}
        token = body.get("resume_token")
        resumption.greeted(self._peer, token if isinstance(token, str) else None)
        if body.get("resumed") is True:
            resumption.resumed(self._peer)

    def _is_to_wait(self, message: Message) -> bool:
        """Return True if the answer must wait.

        It waits until other nodes know the peer's patterns, and until it is clear which peers are the same bus.
        """
        peer = self._peer
        link = peer.link
        body = message.body if isinstance(message.body, dict) else {}
        if link.upstream:
            return False
        key, value = peer.identity_key, peer.identity
        known = None if link.opened else key if key is not None else value  # behind a broker each link has a different one
        identity = known if isinstance(known, (str, int)) else None
        alone = link.runtime.bus_identities.take_secret(peer, body.get("secret"), identity)
        return not alone or (self._pubsub.tells_inside and bool(body.get("confirm")))

    async def _answer_later(self, deferred: deque[Message]) -> None:
        peer, identities = self._peer, self._peer.link.runtime.bus_identities
        patience = HELLO_TIMEOUT / 2  # the answer must arrive within HELLO_TIMEOUT
        try:
            while deferred:
                count = min(len(deferred), _TURN)
                if peer in identities.held_out:
                    await identities.settled(patience)
                with anyio.move_on_after(patience):
                    await self._pubsub.announcer.known_inside()
                if not peer.connected:
                    return
                for _ in range(count):
                    message = deferred.popleft()
                    peer.release(message)
                    self._answer(message)
                await anyio.lowlevel.checkpoint()
        finally:
            self._deferred = None
            for message in deferred:
                peer.release(message)

    def _answer(self, message: Message) -> None:
        peer = self._peer
        body = message.body if isinstance(message.body, dict) else {}
        link, confirm = peer.link, body.get("confirm")
        limits = link.runtime.limits
        if isinstance(confirm, list) and len(confirm) > _CONFIRMED:
            text = f"confirm has {len(confirm)} patterns: a hello asks about {_CONFIRMED} at most, so send several"
            send_error(peer, message, Code.INVALID_ARGUMENT, text)
            return
        answer = answer_of(body, peer.id)
        if answer is None:
            send_error(peer, message, Code.UNIMPLEMENTED, "this query returned to the bus that sent it")
            return
        if not link.initiates:
            answer["answers_only"] = True
        answer |= link.runtime.bus_identities.answer(body.get("nonce"))
        resumption = peer.host.resumption
        token = None if resumption is None else resumption.token(peer)
        if token is not None:
            answer["resume_token"] = token
        if to_tell := self._pubsub.announcer.to_tell(peer):
            answer["subscribes"] = to_tell
        if self._pubsub.passes_on:
            answer["passes"] = True
        if "limits" in body:
            answer["limits"] = {"message": limits.message, "subject": limits.subject, "subscriptions": limits.subscriptions}
        if link.retry is not None:
            answer["retry"] = retry_of(link.retry)
        if link.expires is not None:
            answer["expires_in"] = max(0, int(1000 * (link.expires - link.runtime.time())))
        self.is_ours(body.get("subscribes"))
        if isinstance(confirm, list):
            patterns = peer.patterns
            answer["refused"] = [one for one in confirm if isinstance(one, (str, int)) and wire_pattern(one) not in patterns]
        link.answer(response_to(message, answer, link), peer)


async def _told(probe: ExtensionProbe) -> Any:
    """Wait for the answer to a hello. Returns None after a timeout or any error except `Disconnected`."""
    try:
        return await probe
    except (Disconnected, RequestCancelled):
        raise
    except (BusError, ConnectionError):
        return None
