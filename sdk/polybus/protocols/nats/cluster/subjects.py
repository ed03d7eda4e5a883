"""Converts between a cluster's wire subjects and the bus's names. `docs/reference/cluster.md` lists both."""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, Final, TypeGuard
from urllib.parse import quote, unquote

from attrs import define, field

from ....errors import LocalProtocolError
from ....subjects import canonical, has_empty_token, is_pattern, wire_pattern
from ..._shared import Memo
from ..operations import is_answerable, refuse

REPLAY: Final = "replay-"  # Prefix of a node's read-only consumers
HANDLERS: Final = "h"  # Queue group of handlers, and of the nodes that a user is connected to
NODE_LETTERS: Final = string.ascii_lowercase + string.digits
NODE_LENGTH: Final = 12
_NODE_NAME: Final = frozenset(NODE_LETTERS)
_LONGEST_NODE: Final = 64
_BESIDE: Final = 256
"""Bytes of a line reserved for the reply subject and the lengths. Servers disconnect a client that sends a longer line."""
_READABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_IN_A_TOKEN: Final = "".join(character for character in _READABLE if character not in ".*>")
_NUMBER: Final = "%i"
_URI: Final = "%u"
_EMPTY: Final = "%0"


def escape_token(text: str) -> str:
    try:
        return quote(text, safe=_IN_A_TOKEN).replace(".", "%2E") if text else _EMPTY  # quote() leaves dots
    except UnicodeEncodeError:
        raise LocalProtocolError(f"lone surrogate in {text[:60]!a}", protocol="nats") from None


def unescape_token(token: str) -> str:
    return "" if token == _EMPTY else unquote(token)


def escape_subject(subject: str | int) -> str:
    if isinstance(subject, int):
        return f"{_NUMBER}{subject}"
    try:
        subject.encode()
    except UnicodeEncodeError:
        raise LocalProtocolError("lone surrogate in the subject", protocol="nats") from None
    if "/" in subject:
        return ".".join((_URI, *(escape_token(segment) for segment in canonical(subject).split("/"))))
    if not subject or has_empty_token(subject):
        raise LocalProtocolError(f"the subject {subject[:60]!r} has an empty token, and servers drop it", protocol="nats")
    plain = subject.isascii() and subject.isprintable() and not _SPECIAL & {*subject}
    return subject if plain else quote(subject, safe=_READABLE)


_SPECIAL: Final = frozenset(" %")


def escape_pattern(pattern: str | int) -> str:
    """Encode a pattern. A URI pattern becomes a pattern that covers all URIs, and the bus filters the messages."""
    made = wire_pattern(pattern)
    if isinstance(made, str) and "/" in made and is_pattern(made):
        return f"{_URI}.>"
    return escape_subject(made)


def publication_pattern(cluster: str) -> Callable[[str | int], str]:
    """Return a function that encodes a cluster's publication patterns for nodes and streams."""
    return lambda pattern: f"{cluster}.p.{escape_pattern(pattern)}"


def covers(wide: str, narrow: str) -> bool:
    given = narrow.split(".")
    for place, token in enumerate(wide.split(".")):
        if token == ">":
            return len(given) > place
        if place >= len(given) or given[place] == ">" or token not in ("*", given[place]):
            return False
    return len(given) == len(wide.split("."))


def unescape_subject(text: str) -> str | int:
    if "%" not in text:
        return text
    if text.startswith(_NUMBER):
        digits = text[len(_NUMBER) :]
        if digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) < 20:
            return int(digits)
        raise refuse(f"{text[:60]!r} is not a number", "invalid_subject")
    head, _, rest = text.partition(".")
    if head == _URI:
        return "/".join(unescape_token(token) for token in rest.split("."))
    return unquote(text)


@define(eq=False)
class ClusterSubjects:
    cluster: str
    node: str
    limit: int  # Maximum bytes of a subject on this wire
    mine: str = field(init=False)
    answers: str = field(init=False)
    nobody: str = field(init=False)
    echo: str = field(init=False)  # Reply subject of this node's publications, by which it recognises them
    written: Memo[str | int, str] = field(init=False)  # Encoded subjects. May raise `LocalProtocolError`.
    handled: Memo[str | int, str] = field(init=False)  # Wire subjects of requests to any handler. May raise as `written`.
    asked: Memo[str | int, str] = field(init=False)  # Subject and reply prefix of such a request
    published: Memo[str | int, str] = field(init=False)
    read: Memo[str, str | int] = field(init=False)
    named: Memo[str, str | int] = field(init=False)  # Maps the wire subjects of requests and publications to the bus's subjects
    askers: Memo[str, str] = field(init=False)
    """Maps reply subjects without their last token to nodes (empty for other clients)."""
    _skipped: int = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.mine = f"{self.cluster}.n.{self.node}."
        self.answers = f"{self.mine}a."
        self.nobody = f"{self.cluster}.n.-.y"
        self.echo = f"{self.mine}p"
        self._skipped = len(self.cluster) + 3
        self.written = Memo(lambda subject: self._checked(escape_subject(subject)))
        self.handled = Memo(lambda subject: f"{self.cluster}.r.{self.written[subject]}")
        self.asked = Memo(lambda subject: f"{self.handled[subject]} {self.answers}")
        self.published = Memo(lambda subject: f"{self.cluster}.p.{self.written[subject]} {self.echo}")
        self.read = Memo(unescape_subject)
        self.named = Memo(lambda subject: unescape_subject(self.rest(subject)))
        self.askers = Memo(self._asker)

    def rest(self, subject: str) -> str:
        return subject[self._skipped :]

    def pattern(self, pattern: str | int) -> str:
        return self._checked(escape_pattern(pattern))

    def keyed(self, what: str, key: str, rest: str) -> str:
        return self._checked(f"{self.cluster}.{what}.{escape_token(key)}.{rest}", _BESIDE)

    def _checked(self, text: str, beside: int = 0) -> str:
        if len(text) > (limit := self.limit - beside):
            fault = f"a subject of {len(text)} bytes on this wire is longer than {limit} (limit: subject)"
            raise LocalProtocolError(fault, protocol="nats")
        return text

    def asker(self, reply: str) -> str:
        """Return the node that receives an answer (empty for other clients). Raises an error for an invalid reply subject."""
        return self.askers[reply.rpartition(".")[0]]

    def _asker(self, beginning: str) -> str:
        """Check the prefix. Otherwise a client that may only send requests could publish in this node's name."""
        if beginning == self.cluster or beginning.startswith(f"{self.cluster}."):
            if (node := self.source(beginning)) and beginning == self.of_node(node, "a"):
                return node
        elif is_answerable(beginning):
            return ""
        raise refuse(f"the reply subject {beginning[:60]!r} does not belong to a node", "malformed")

    def source(self, beginning: str) -> str:
        """Return the node that sent a publication, given the reply subject without its last token (empty if unknown)."""
        node = beginning.removeprefix(f"{self.cluster}.n.").partition(".")[0]
        return node if beginning.startswith(f"{self.cluster}.n.") and is_node(node) else ""

    def of_reader(self, reader: int) -> str:
        return f"{self.cluster}.j.{self.node}.{reader}"

    def of_node(self, node: str, rest: str) -> str:
        return f"{self.cluster}.n.{node}.{rest}"


def node_word(subject: str) -> str | None:
    """Return the token after a node's name, or ``j`` for the node's readers. Capture readers do not know the cluster's name."""
    tokens = subject.split(".", 4)
    if len(tokens) < 4 or len(tokens[2]) != NODE_LENGTH or not _NODE_NAME.issuperset(tokens[2]):
        return None
    if tokens[1] == "n":
        return tokens[3]
    return "j" if tokens[1] == "j" and len(tokens) == 4 and tokens[3].isdigit() else None


def is_node(name: Any) -> TypeGuard[str]:
    """Return True for a node name, which is a single short token that is valid in any subject."""
    return isinstance(name, str) and len(name) <= _LONGEST_NODE and name.isascii() and name.isalnum()


def split_key(rest: str) -> tuple[str, str]:
    key, dot, subject = rest.partition(".")
    if not dot:
        raise refuse(f"{rest[:60]!r} has no key, or no subject", "invalid_subject")
    return unescape_token(key), subject
