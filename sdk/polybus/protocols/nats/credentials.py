"""Credentials for CONNECT. A server that supports keys sends a nonce to sign."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from ...errors import LocalProtocolError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_SEED: Final = re.compile(r"\bS[A-Z2-7]{57}\b")
_JWT: Final = re.compile(r"-----BEGIN NATS USER JWT-----\s+(\S+)\s+-+END NATS USER JWT-+")
_SEED_PREFIX: Final = 18 << 3
_USER_PREFIX: Final = 20 << 3


def _without_padding(data: bytes) -> str:
    return data.rstrip(b"=").decode()


def private_keys() -> type[Ed25519PrivateKey]:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise ImportError("nkeys and credentials files need cryptography: pip install 'polybus[nats]'") from error
    return Ed25519PrivateKey


@frozen
class KeyPair:
    public: str  # Public key as in a server's configuration: ``U...``
    sign: Callable[[bytes], bytes] = field(repr=False)

    @classmethod
    def of_seed(cls, seed: str) -> KeyPair:
        try:
            raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
        except binascii.Error:
            raise ValueError("nats: the seed of an nkey is base32, 58 characters that begin with SU") from None
        body, check = raw[:-2], raw[-2:]
        if len(body) != 34 or binascii.crc_hqx(body, 0) != int.from_bytes(check, "little"):
            raise ValueError("nats: the seed of an nkey is corrupt: its checksum does not match")
        if body[0] & 0xF8 != _SEED_PREFIX or (body[0] & 7) << 5 | body[1] >> 3 != _USER_PREFIX:
            raise ValueError("nats: a user's seed begins with SU; this is a different kind of seed")
        key = private_keys().from_private_bytes(body[2:])
        named = bytes((_USER_PREFIX,)) + key.public_key().public_bytes_raw()
        public = base64.b32encode(named + binascii.crc_hqx(named, 0).to_bytes(2, "little"))
        return cls(_without_padding(public), key.sign)


@frozen(kw_only=True)
class Credentials:
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    key: KeyPair | None = None
    jwt: str = field(default="", repr=False)
    unread: bool = False  # The credentials are in a file that was not read yet

    def members(self, nonce: str | None) -> dict[str, Any]:
        if self.unread:
            raise LocalProtocolError("the file of nkey= or creds= has not been read: call with_files first", protocol="nats")
        if self.key is not None:
            if nonce is None:
                text = "this server sent no nonce, which an nkey or credentials file needs: it does not support keys"
                raise LocalProtocolError(text, protocol="nats")
            signature = _without_padding(base64.urlsafe_b64encode(self.key.sign(nonce.encode())))
            return {"jwt": self.jwt, "sig": signature} if self.jwt else {"nkey": self.key.public, "sig": signature}
        if self.token:
            return {"auth_token": self.token}
        return {"user": self.user, "pass": self.password} if self.user else {}


def is_seed(nkey: str) -> bool:
    return _SEED.fullmatch(nkey) is not None


def key_in(text: str) -> KeyPair:
    found = _SEED.search(text)
    if found is None:
        raise ValueError("nats: nkey= must be a seed (58 characters that begin with SU) or the path of a file with one")
    return KeyPair.of_seed(found[0])


def read_creds(text: str) -> Credentials:
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if jwt is None or seed is None:
        raise ValueError("nats: creds= is not a credentials file, which has a USER JWT and a USER NKEY SEED")
    return Credentials(key=KeyPair.of_seed(seed[0]), jwt=jwt[1])
