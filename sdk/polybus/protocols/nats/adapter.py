"""Options of the NATS protocol."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, Final

from attrs import evolve, field, frozen

from ...limits import Limits
from ...plugins import FrameField, Role
from ...plugins.tools import shown
from .._shared import UrlOptions
from .cluster.nodes import KnownHandlers
from .codec import NatsCodec
from .credentials import Credentials, is_seed, key_in, private_keys, read_creds
from .operations import NatsFraming, dissect, fault_in_name, has_wildcard
from .session import NatsSession

_LIMITS: Final = Limits()
_SHOWN: Final = ("queue", "inbox", "client", "dead_letters", "domain")
"""Options that contain neither a secret nor the path to one."""
_LONGER: Final = 1024  # Extra bytes of a subject in a cluster
_WORDS: Final = {"true": True, "1": True, "false": False, "0": False, True: True, False: False}


def _flag(value: Any) -> Any:
    return _WORDS.get(value, value)


def _is_flag(adapter: Any, attribute: Any, value: object) -> None:
    if type(value) is not bool:
        raise ValueError(f"nats: {attribute.name}={shown(value)} must be true or false")


def _is_name(adapter: Any, attribute: Any, value: object) -> None:
    if fault := fault_in_name(value, 100) or ("it has wildcards" if has_wildcard(str(value)) else None):
        raise ValueError(f"nats: {attribute.name}={shown(value)}: {fault}")


def _is_name_or_empty(adapter: Any, attribute: Any, value: object) -> None:
    if value != "":
        _is_name(adapter, attribute, value)


def _is_token_or_empty(adapter: Any, attribute: Any, value: object) -> None:
    _is_name_or_empty(adapter, attribute, value)
    if "." in str(value):
        raise ValueError(f"nats: {attribute.name}={value!r:.60} must be a single name without dots")


@frozen(kw_only=True)
class Nats(UrlOptions):
    """The NATS protocol with its options.

    Args:
        queue: Queue group for this bus's handlers. Each request is delivered to one member of the group. NATS services use
            ``q``.
        inbox: Prefix of reply subjects, for users who may not subscribe to ``_INBOX.>``.
        client: Name of this connection on the server's monitoring pages.
        tls_first: Start TLS before INFO, for servers with ``handshake_first``.
        user: User name. Requires `password`. You can also use ``nats+tcp://user:password@host``.
        password: Password of `user`.
        token: Token to use instead of user and password. You can also use ``nats+tcp://token@host``.
        nkey: Seed of an nkey (``SU...``), or path to a file containing the seed. `nkey` and `creds` require ``pip install
            'polybus[nats]'``.
        creds: Path to a credentials file with a JWT and a key. The file is re-read for each connection.
        dead_letters: Subject prefix for the stream that stores dead letters of durable handlers under
            ``<dead_letters>.<durable>.<subject>``. Without a prefix, dead letters are not stored.
        domain: JetStream domain of the stores if it differs from the server's own domain, for example on a leaf node.

    Raises:
        ValueError: If a value is unknown, the seed is corrupt, or more than one kind of credentials is set.
        ImportError: If `nkey` or `creds` is set and `cryptography` is not installed.
    """

    name = "nats"
    option_names: ClassVar[tuple[str, ...]] = (
        "queue",
        "inbox",
        "client",
        "tls_first",
        "creds",
        "nkey",
        "user",
        "password",
        "token",
        "dead_letters",
        "domain",
    )
    dials: ClassVar[bool] = True
    keeps: ClassVar[bool] = True
    default_port: ClassVar[int] = 4222

    queue: str = field(default="q", validator=_is_name)
    inbox: str = field(default="_INBOX", validator=_is_name)
    client: str = "polybus"
    tls_first: bool = field(default=False, converter=_flag, validator=_is_flag)
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    nkey: str = field(default="", repr=False)
    creds: str = ""
    dead_letters: str = field(default="", validator=_is_name_or_empty)
    domain: str = field(default="", validator=_is_token_or_empty)
    cluster: str = ""
    """Name of the cluster that this bus belongs to. Only `polybus.cluster` sets this attribute and the following ones."""
    member: str = field(default="", repr=False)
    host: str = field(default="", repr=False)
    known_handlers: KnownHandlers = field(factory=KnownHandlers, eq=False, repr=False)
    """Current and recent handlers of other nodes, shared by all connections of a bus."""
    _credentials: Credentials = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        kinds = [name for name in ("user", "token", "nkey", "creds") if getattr(self, name)]
        if len(kinds) > 1:
            raise ValueError(f"nats: use one kind of credentials, not {' and '.join(kinds)}")
        if self.password and not self.user:
            raise ValueError("nats: password= needs user=")
        if self.files:
            private_keys()
            credentials = Credentials(unread=True)
        elif self.nkey:
            credentials = Credentials(key=key_in(self.nkey))
        else:
            credentials = Credentials(user=self.user, password=self.password, token=self.token)
        object.__setattr__(self, "_credentials", credentials)

    @property
    def files(self) -> Mapping[str, str]:
        """Path and purpose of the credentials file, if there is one. See `plugins.ProtocolFeatures`."""
        if self.creds:
            return {self.creds: "the credentials file of creds="}
        return {self.nkey: "the file of nkey="} if self.nkey and not is_seed(self.nkey) else {}

    def with_files(self, texts: Mapping[str, str]) -> Nats:
        """Return a copy with the credentials from the credentials file. Raises `ValueError` if they are invalid."""
        credentials = read_creds(texts[self.creds]) if self.creds else Credentials(key=key_in(texts[self.nkey]))
        made = copy(self)
        object.__setattr__(made, "_credentials", credentials)
        return made

    @staticmethod
    def user_options(user: str, password: str | None) -> Mapping[str, str]:
        """Convert the user and password in a URL to options. A user without a password is a token."""
        return {"token": user} if password is None else {"user": user, "password": password}

    @property
    def url_options(self) -> Mapping[str, str]:
        """Return the options that differ from their defaults, without secrets."""
        return {name: value for name, value in super().url_options.items() if name in _SHOWN}

    @property
    def framing(self) -> NatsFraming:
        """The framing on byte streams and WebSockets."""
        return NatsFraming(self.tls_first)

    def codec(self, limits: Limits = _LIMITS) -> NatsCodec:
        """Return the codec. Adapters with the same queue and limits share a codec."""
        return _codec(self.queue, limits, bool(self.cluster))

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """Return the parts of an operation for display. See `plugins.Dissector`."""
        return list(dissect(frame))

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> NatsSession:
        """Create a connection's session, which is a client session in both roles. `rng` generates the inbox and the tokens."""
        random_ = random.SystemRandom() if rng is None else rng
        return NatsSession(self.codec(limits), limits, random_, self, self._credentials)


@lru_cache(maxsize=64)
def _codec(queue: str, limits: Limits, cluster: bool) -> NatsCodec:
    if cluster:  # a cluster adds a prefix and escapes characters, up to three for one
        limits = evolve(limits, subject=3 * limits.subject + _LONGER)
    return NatsCodec(limits=limits, queue=queue)
