"""Secrets, known by their names: in captures, and in the URLs that people are shown."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import unquote_plus

WORDS: Final = tuple(
    "token cookie passw passphrase passcode pwd secret authorization apikey accesskey privatekey sshkey credential sessionid "
    "sessionkey signature jwt bearer csrf cardnumber motdepasse".split()
)
"""A name that contains one of these, without regard to case, ``-``, ``_`` and spaces, is that of a secret."""

SHORT: Final = tuple("pin otp totp cvv cvc mfa sas iban pass".split())
"""Words of a secret's name that others contain: such a word has to end the name, or be followed by one of `ENDINGS`."""
ENDINGS: Final = ("code", "number", "value")

OF_QUERIES: Final = tuple(
    "key sig auth code ticket sid session sess sessid phpsessid nkey creds psk hmac assertion client_assertion".split()
)
"""Names of secrets in the query of a URL, which are ordinary ones elsewhere."""

JWT: Final = r"eyJ[\w-]{8,}\.[\w-]*\.[\w.-]+"
"""A JSON Web Token: JSON in base64, a payload (none in the encrypted kind with a direct key), and at least one part more."""

_BOUNDARY: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_is_short: Final = re.compile(rf"(?:^|[^a-z])(?:{'|'.join(SHORT)})[^a-z]?(?:{'|'.join(ENDINGS)})?[^a-z]*$").search

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(\S*)")
_PASSWORD: Final = re.compile(r"^([^\s/?#:@\[]*):(?:[^\s/?#]*|(?!\d*[/?#])\S*)@")
"""One with ``/``, ``?`` or ``#`` in it, which should be percents, is told from a port: that is a number."""
_TOKEN: Final = re.compile(r"^(?!TOKEN@)[^\s/?#:@]+@")  # but in advice, where it stands for one
_jwt: Final = re.compile(rf"(?<![\w-]){JWT}", re.ASCII)
_PARTS: Final = re.compile(r"([?&#;])")
_CLOSING: Final = "'\")]}>,.:;"
"""Characters behind a URL in a sentence."""
_NESTED: Final = 3
"""URLs in the query of one in the query of one, which are looked at."""


@functools.lru_cache(1024)
def is_secret(name: str) -> bool:
    """True for the name of a member whose value is a secret."""
    lower = name.lower()
    plain = lower.replace("-", "").replace("_", "").replace(" ", "")
    return any(word in plain for word in WORDS) or bool(_is_short(_BOUNDARY.sub("_", name).lower()))


def is_secret_of_query(name: str) -> bool:
    """True for the name of a secret in the query of a URL."""
    return is_secret(name) or name.lower() in OF_QUERIES


def without_secrets(text: str) -> str:
    """A text for people: in each URL ``user:***@`` stands for user and password, ``***@`` for a user or a token alone,
    ``name=***`` for a member of the query that is named like a secret, or that is a URL with one, ``***`` for a JSON Web Token.
    The options of protocols stay."""
    if "://" not in text or not ("@" in text or "?" in text or "#" in text or ";" in text or "eyJ" in text):
        return text
    return _URL.sub(lambda found: f"{found[1]}://{_shown(found[1], found[2])}", text)


def shown_url(url: str) -> str:
    """The repr of a URL, or of what should be one, without its secrets."""
    return repr(without_secrets(url) if "://" in url else _shown("", url))


def shown_target(target: str) -> str:
    """The target of a request (``/bus?token=***``), without the secrets in its query."""
    return _shown("", target) if "?" in target or "#" in target else target


def shown_members(members: Mapping[str, str]) -> str:
    """The repr of headers, cookies or the fields of a query, without the values of secrets."""
    return repr({name: "***" if is_secret_of_query(name) else value for name, value in members.items()})


def _shown(scheme: str, rest: str, depth: int = _NESTED) -> str:
    rest = _TOKEN.sub("***@", _PASSWORD.sub(r"\1:***@", rest))
    parts = _PARTS.split(_jwt.sub("***", rest))
    inside = False
    """True in the value of a secret: characters that part others may belong to it."""
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
    """True for the member of a query that is a URL, or the target of one, with secrets."""
    plain = unquote_plus(value) if "%" in value else value
    scheme, found, rest = plain.partition("://")
    if not found and plain is value:
        return False
    rest = rest if found else plain
    return _shown(scheme, rest, depth - 1) != rest


def _hides(scheme: str, name: str) -> bool:
    """True for the name of a secret in the query of a URL; ``key=`` of Zenoh is a file."""
    return is_secret(name) if "zenoh" in scheme else is_secret_of_query(name)
