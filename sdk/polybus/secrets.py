"""Detects secrets by name, to hide them in captures, logs and error messages."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_plus

WORDS: Final = tuple(
    "token cookie pass_w pass_phrase pass_key pwd pswd kennwort mot_de_passe contrase wachtwoord secret authorization "
    "credential session_id session_key api_key access_key private_key ssh_key encryption_key signing_key master_key "
    "account_key shared_key auth_key license_key pass_code auth_code access_code security_code verification_code "
    "recovery_code backup_code one_time_code seed_phrase connection_string signature jwt bearer csrf xsrf card_number "
    "credit_card debit_card".split()
)
"""Names that contain any of these words are secrets. Case, ``-``, ``_``, ``.`` and spaces are ignored."""

SHORT: Final = tuple("pin otp totp hotp mfa 2fa cvv cvc csc sas psk hmac pass pw senha creds card iban ssn".split())
"""Secret names that also occur inside other words, so they must be at the end of the name or precede one of `ENDINGS`."""
ENDINGS: Final = tuple("code number no num value key seed hash url uri string".split())

OF_QUERIES: Final = tuple(
    "key sig auth code ticket sid session sess sessid phpsessid nkey creds psk hmac assertion client_assertion".split()
)
"""Secret names in URL queries that are harmless elsewhere."""

JWT: Final = r"eyJ[\w-]{8,}\.[\w-]*\.[\w.-]+"
"""A JSON Web Token: JSON in base64, a payload (empty if encrypted with a direct key), and at least one more part."""

TAIL: Final = r"[-_ .0-9()\[\]#]{0,6}"
"""Characters allowed after a secret word or ending, for example an index."""

_NO_WORD: Final = re.compile(r"[\W_]+")
_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WITHOUT: Final = dict.fromkeys(map(ord, "-_ ."))
_PLAIN: Final = tuple(word.replace("_", "") for word in WORDS)
_is_short: Final = re.compile(
    rf"(?:(?:^|[^a-z])(?:{'|'.join(SHORT)})|2_?fa)[^a-z]?(?:(?:{'|'.join(ENDINGS)})s?)?{TAIL}$"
).search

_URL: Final = re.compile(r"(?<![A-Za-z0-9+.-])([A-Za-z0-9+.-]+)://(\S*)")
"""Searched only from the first character of a scheme. Otherwise, the time would be quadratic in the length of a word."""
_PASSWORD: Final = re.compile(r"^([^\s/?#:@\[]*):(?:[^\s/?#]*|(?!\d*[/?#])\S*)@")
"""User and password. A password may contain an unescaped ``/``, ``?`` or ``#``, because it cannot be mistaken for a port."""
_TOKEN: Final = re.compile(r"^(?!TOKEN@)[^\s/?#:@]+@")  # except the placeholder TOKEN in advice
_jwt: Final = re.compile(rf"(?<![\w-]){JWT}", re.ASCII)
_PARTS: Final = re.compile(r"([?&#;])")
_CLOSING: Final = "'\")]}>,.:;"
"""Characters that may follow a URL in a sentence."""
_NESTED: Final = 3
"""Maximum nesting of URLs in the queries of other URLs."""


def words_of(name: str) -> list[str]:
    """Split a name at punctuation and capitals into one or more lower-case words, including empty ones."""
    return _NO_WORD.sub("_", _BOUNDARY.sub("_", name)).strip("_").lower().split("_")


@functools.lru_cache(1024)
def is_secret(name: str) -> bool:
    """Return True if a name denotes a secret."""
    plain = name.lower().translate(_WITHOUT)
    return any(word in plain for word in _PLAIN) or bool(_is_short(_BOUNDARY.sub("_", name).lower()))


def is_secret_of_query(name: str) -> bool:
    return is_secret(name) or name.lower() in OF_QUERIES


def without_secrets(text: str) -> str:
    """Remove the secrets from all URLs in a string.

    Credentials become ``user:***@``. A user without a password becomes ``***@``, because it may be a token. A JSON Web Token
    becomes ``***``. A query parameter becomes ``name=***`` if it has a secret name or contains a URL with a secret. Protocol
    options are kept.
    """
    if "://" not in text or not ("@" in text or "?" in text or "#" in text or ";" in text or "eyJ" in text):
        return text
    return _URL.sub(lambda found: f"{found[1]}://{_shown(found[1], found[2])}", text)


def shown_url(url: str) -> str:
    """Return the repr of a URL without secrets. Invalid URLs are allowed."""
    return repr(without_secrets(url) if "://" in url else _shown("", url))


def shown_target(target: str) -> str:
    """Remove the secrets from the query of a request target: ``/bus?token=***``."""
    return _shown("", target) if "?" in target or "#" in target else target


def shown_members(members: Mapping[str, str]) -> str:
    """Return the repr of headers, cookies or query parameters without the values of secrets."""
    return repr({name: "***" if is_secret_of_query(name) else value for name, value in members.items()})


def _shown(scheme: str, rest: str, depth: int = _NESTED) -> str:
    rest = _TOKEN.sub("***@", _PASSWORD.sub(r"\1:***@", rest))
    parts = _PARTS.split(_jwt.sub("***", rest))
    inside = False
    """True inside a secret value, which may contain separators."""
    for place in range(2, len(parts), 2):
        name, found, value = parts[place].partition("=")
        inside = inside and parts[place - 1] != "&" and not (found and parts[place - 1] == "#")
        if inside:
            parts[place - 1] = parts[place] = ""
        elif found and value and (_hides(scheme, unquote_plus(name)) or (depth and _has_secrets(value, depth))):
            inside = True
            parts[place] = f"{name}=***{value[len(value.rstrip(_CLOSING)) :]}"
    return "".join(parts)


def _has_secrets(value: str, depth: int) -> bool:
    plain = unquote_plus(value) if "%" in value else value
    scheme, found, rest = plain.partition("://")
    if not found and plain is value:
        return False
    rest = rest if found else plain
    return _shown(scheme, rest, depth - 1) != rest


def _hides(scheme: str, name: str) -> bool:
    """Return True if a query parameter of a URL is a secret. Zenoh's ``key=`` isn't, because it names a file."""
    return is_secret(name) if "zenoh" in scheme else is_secret_of_query(name)
