"""Keys and tokens of NATS for tests: nkeys of all kinds, and an operator with an account and a user in its JWTs."""

from __future__ import annotations

import base64
import binascii
import json
from typing import Any

from attrs import define
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_KINDS = {"O": 14 << 3, "A": 0, "U": 20 << 3}


def _base32(data: bytes) -> str:
    return base64.b32encode(data + binascii.crc_hqx(data, 0).to_bytes(2, "little")).rstrip(b"=").decode()


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


@define
class Key:
    """A key of an operator (O), an account (A) or a user (U)."""

    kind: str
    private: Ed25519PrivateKey

    @classmethod
    def of(cls, kind: str, number: int) -> Key:
        """Always the same for the same number."""
        return cls(kind, Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))

    @property
    def seed(self) -> str:
        kind = _KINDS[self.kind]
        return _base32(bytes((18 << 3 | kind >> 5, (kind & 31) << 3)) + self.private.private_bytes_raw())

    @property
    def public(self) -> str:
        return _base32(bytes((_KINDS[self.kind],)) + self.private.public_key().public_bytes_raw())

    def jwt(self, subject: Key, name: str, nats: dict[str, Any], until: int | None = None) -> str:
        """A token about another key, signed by this one; good until a time, where one is given."""
        claims = {"jti": name, "iat": 1, "iss": self.public, "name": name, "sub": subject.public}
        claims |= {"nats": {"version": 2, **nats}} | ({} if until is None else {"exp": until})
        head = json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode()
        text = f"{_base64(head)}.{_base64(json.dumps(claims).encode())}"
        return f"{text}.{_base64(self.private.sign(text.encode()))}"


class Operator:
    def __init__(self) -> None:
        self.operator, self.account, self.user = Key.of("O", 1), Key.of("A", 2), Key.of("U", 3)

    @property
    def config(self) -> str:
        limits = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1) | {"wildcards": True}
        account = self.operator.jwt(self.account, "shop", {"type": "account", "limits": limits})
        return (
            f"operator: {self.operator.jwt(self.operator, 'op', {'type': 'operator'})}\n"
            f"resolver: MEMORY\nresolver_preload: {{ {self.account.public}: {account} }}\n"
        )

    @property
    def creds(self) -> str:
        return self.creds_until(None)

    def creds_until(self, until: int | None) -> str:
        """The same, good until a time."""
        jwt = self.account.jwt(self.user, "ann", {"type": "user", "subs": -1, "data": -1, "payload": -1}, until)
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{self.user.seed}\n------END USER NKEY SEED------\n"
        )
