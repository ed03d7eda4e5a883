"""The options of the protocol, and what is made from them."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import Any, ClassVar, Final

from attrs import evolve, field, frozen

from ...limits import Limits
from ...plugins import FrameField, Role
from .._options import UrlOptions
from .checks import fault_in_name, has_wildcard
from .cluster.known_handlers import KnownHandlers
from .codec import NatsCodec
from .connection import SessionOptions
from .credentials import Credentials, is_seed, key_in, private_keys, read_creds
from .dissect import dissect
from .operations import NatsFraming
from .session import NatsSession

_LIMITS: Final = Limits()
_SHOWN: Final = ("queue", "inbox", "client", "dead_letters", "domain")
"""The options that are no secrets, nor lead to any."""
_LONGER: Final = 1024
"""Bytes by which a subject of a cluster may be longer."""
_WORDS: Final = {"true": True, "1": True, "false": False, "0": False, True: True, False: False}


def _flag(value: Any) -> Any:
    return _WORDS.get(value, value)


def _is_flag(adapter: Any, attribute: Any, value: object) -> None:
    if type(value) is not bool:
        raise ValueError(f"nats: {attribute.name}={value!r} is true or false")


def _is_name(adapter: Any, attribute: Any, value: object) -> None:
    fault = fault_in_name(value, 100)
    if fault is None and has_wildcard(str(value)):
        fault = "it has wildcards"
    if fault is not None:
        raise ValueError(f"nats: {attribute.name}={value!r:.60}: {fault}")


def _is_name_or_empty(adapter: Any, attribute: Any, value: object) -> None:
    if value != "":
        _is_name(adapter, attribute, value)


def _is_token_or_empty(adapter: Any, attribute: Any, value: object) -> None:
    _is_name_or_empty(adapter, attribute, value)
    if "." in str(value):
        raise ValueError(f"nats: {attribute.name}={value!r:.60}: one name, without a dot")


@frozen(kw_only=True)
class Nats(UrlOptions):
    """The NATS protocol with its options.

    Args:
        queue: The group of this bus's handlers: each request goes to one of its members, in whatever program. ``q`` is that of
            NATS services.
        inbox: The first part of the subjects to which answers come, where a user may not subscribe to ``_INBOX.>``.
        client: The name that the server shows for this connection.
        tls_first: TLS begins before the server's first word, as its ``handshake_first`` says.
        user: With `password`; also as ``nats+tcp://user:password@host``.
        password: Of `user`.
        token: In place of user and password; also as ``nats+tcp://token@host``.
        nkey: The seed of a key (``SU...``), or the path of a file with one. Needs ``pip install 'polybus[nats]'``, as `creds`.
        creds: The path of a credentials file: the JWT of an operator and a key. Files are read for each connection.
        dead_letters: The first tokens of subjects, for which the owners of a stream have another one: there a dead letter of a
            durable handler is kept, as ``<dead_letters>.<durable>.<subject>``. Without it none is.
        domain: The JetStream domain that keeps what is stored, where it is not that of the server: of a leaf node, for example.

    Raises:
        ValueError: A value is not known, a seed is damaged, or there is more than one kind of credentials.
        ImportError: `nkey` or `creds` is given, and `cryptography` is not installed.
    """

    name = "nats"
    option_names: ClassVar[tuple[str, ...]] = (
        "queue", "inbox", "client", "tls_first", "creds", "nkey", "user", "password", "token", "dead_letters", "domain",
    )  # fmt: skip
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
    """The cluster that this bus is a node of: for `polybus.cluster`, and no option of a URL."""
    member: str = field(default="", repr=False)
    """The id of this bus, in a cluster."""
    host: str = field(default="", repr=False)
    """The machine that it runs on, in a cluster."""
    known_handlers: KnownHandlers = field(factory=KnownHandlers, eq=False, repr=False)
    """The handlers that other nodes have, or had lately: for `polybus.cluster`, the same for all connections of a bus."""
    _credentials: Credentials = field(init=False, eq=False, repr=False)

    def __attrs_post_init__(self) -> None:
        kinds = [name for name in ("user", "token", "nkey", "creds") if getattr(self, name)]
        if len(kinds) > 1:
            raise ValueError(f"nats: one kind of credentials, not {' and '.join(kinds)}")
        if self.password and not self.user:
            raise ValueError("nats: password= goes with user=")
        object.__setattr__(self, "_credentials", self._given_credentials())

    def _given_credentials(self) -> Credentials:
        """May raise `ValueError`, `ImportError`: as the class."""
        if self.files:
            private_keys()
            return Credentials(unread=True)
        if self.nkey:
            return Credentials(key=key_in(self.nkey))
        return Credentials(user=self.user, password=self.password, token=self.token)

    @property
    def files(self) -> Mapping[str, str]:
        """The path of the file with the credentials, where there is one, and its name; see `plugins.ProtocolFeatures`."""
        if self.creds:
            return {self.creds: "the credentials file of creds="}
        return {self.nkey: "the file of nkey="} if self.nkey and not is_seed(self.nkey) else {}

    def with_files(self, texts: Mapping[str, str]) -> Nats:
        """The same with what is in its file. May raise `ValueError`: it is not what it should be."""
        credentials = read_creds(texts[self.creds]) if self.creds else Credentials(key=key_in(texts[self.nkey]))
        made = copy(self)
        object.__setattr__(made, "_credentials", credentials)
        return made

    @staticmethod
    def user_options(user: str, password: str | None) -> Mapping[str, str]:
        """The options that user and password of a URL stand for; a user alone is a token."""
        return {"token": user} if password is None else {"user": user, "password": password}

    @property
    def url_options(self) -> Mapping[str, str]:
        """The options that differ from the defaults and are no secrets, nor lead to any."""
        return {name: value for name, value in super().url_options.items() if name in _SHOWN}

    @property
    def framing(self) -> NatsFraming:
        """The protocol's own framing on byte streams and WebSockets."""
        return NatsFraming(self.tls_first)

    def codec(self, limits: Limits = _LIMITS) -> NatsCodec:
        """The codec; the same object for equal queue and limits."""
        return _codec(self.queue, limits, bool(self.cluster))

    def dissect(self, frame: bytes) -> Sequence[FrameField]:
        """The parts of an operation, for people; see `plugins.Dissector`."""
        return list(dissect(frame))

    def session(self, role: Role, limits: Limits = _LIMITS, rng: random.Random | None = None) -> NatsSession:
        """A session for one connection: the client's side, whatever the role. `rng` makes the inbox and the tokens."""
        options = SessionOptions(
            queue=self.queue,
            inbox=self.inbox,
            client=self.client,
            credentials=self._credentials,
            renews=bool(self.creds),
            cluster=self.cluster,
            member=self.member,
            host=self.host,
            known_handlers=self.known_handlers,
        )
        return NatsSession(self.codec(limits), limits, random.SystemRandom() if rng is None else rng, options)


@lru_cache(maxsize=64)
def _codec(queue: str, limits: Limits, cluster: bool) -> NatsCodec:
    if cluster:  # what it puts before a subject, and three characters for one
        limits = evolve(limits, subject=3 * limits.subject + _LONGER)
    return NatsCodec(limits=limits, queue=queue)
