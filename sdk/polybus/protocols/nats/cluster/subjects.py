"""Subjects of a cluster on the wire, and the names of the bus in them.

Of a cluster named ``shop``:

========================  ===========================  =======================================================
``shop.p.<subject>``      every node that wants it     publications
``shop.p.<subject>``      a group                      publications for one of the group
``shop.r.<subject>``      the group ``h``              requests, notifications, opens
``shop.u.<key>.<...>``    nodes that have the user     publications for all connections of a user
``shop.k.<key>.<...>``    one of these nodes           what one connection of a user is asked
``shop.n.<node>.<...>``   the node                     answers, items, what is for it or a client of it alone
``shop.j.<node>.<...>``   the node                     stored publications that it has asked for
``shop.dead.<...>``       a store                      publications that no handler could deal with
``shop.a``                every node                   hello and goodbye
========================  ===========================  =======================================================

Subjects of the bus stand there as they are, but for what this wire cannot carry: blanks and control characters are written as
in URLs, a number as ``%i65537``, a URI as ``%u`` and its segments.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from typing import Any, Final, TypeGuard
from urllib.parse import quote, unquote

from attrs import define, field

from ....errors import LocalProtocolError, RemoteProtocolError
from ....subjects import canonical, has_empty_token, is_pattern, wire_pattern
from ..checks import is_answerable, refuse
from ..memo import Memo

REPLAY: Final = "replay-"
"""The beginning of the names of consumers of a node that only read."""
HANDLERS: Final = "h"
"""The queue group of handlers, and of the nodes that a user is connected to."""
NODE_LETTERS: Final = string.ascii_lowercase + string.digits
NODE_LENGTH: Final = 12
"""Letters of the name of a node, and how many it has."""
_NODE_NAME: Final = frozenset(NODE_LETTERS)
_LONGEST_NODE: Final = 64
_BESIDE: Final = 256
"""Bytes of a line beside its subject: where an answer is wanted, and two lengths. Servers cut who sends a longer line."""
_READABLE: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")
_IN_A_TOKEN: Final = "".join(character for character in _READABLE if character not in ".*>")
_NUMBER: Final = "%i"
_URI: Final = "%u"
_EMPTY: Final = "%0"


def escape_token(text: str) -> str:
    """Make one token of any text. May raise `LocalProtocolError`: a part of it is no text."""
    try:
        return quote(text, safe=_IN_A_TOKEN).replace(".", "%2E") if text else _EMPTY  # which quote() leaves as it is
    except UnicodeEncodeError:
        raise LocalProtocolError(f"lone surrogate in {text[:60]!a}", protocol="nats") from None


def unescape_token(token: str) -> str:
    """Read such a token. Whatever it is, it gives a text."""
    return "" if token == _EMPTY else unquote(token)


def escape_subject(subject: str | int) -> str:
    """Write a subject of the bus. May raise `LocalProtocolError`: a token is empty, or the text is none."""
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
    return (
        subject if subject.isascii() and subject.isprintable() and not _SPECIAL & {*subject} else quote(subject, safe=_READABLE)
    )


_SPECIAL: Final = frozenset(" %")


def escape_pattern(pattern: str | int) -> str:
    """Write a pattern; one of URIs stands for all of them, and the bus looks again. May raise `LocalProtocolError`."""
    made = wire_pattern(pattern)
    if isinstance(made, str) and "/" in made and is_pattern(made):
        return f"{_URI}.>"
    return escape_subject(made)


def publication_pattern(cluster: str) -> Callable[[str | int], str]:
    """Make what writes a pattern of publications of a cluster, as nodes subscribe to it, and streams keep it.

    That may raise `LocalProtocolError`, as `escape_pattern`.
    """
    return lambda pattern: f"{cluster}.p.{escape_pattern(pattern)}"


def covers(wide: str, narrow: str) -> bool:
    """Tell whether one pattern of the wire matches all that another one does."""
    given = narrow.split(".")
    for place, token in enumerate(wide.split(".")):
        if token == ">":
            return len(given) > place
        if place >= len(given) or given[place] == ">" or token not in ("*", given[place]):
            return False
    return len(given) == len(wide.split("."))


def unescape_subject(text: str) -> str | int:
    """Read a subject. May raise `RemoteProtocolError`: ``invalid_subject``."""
    if "%" not in text:
        return text
    if text.startswith(_NUMBER):
        digits = text[len(_NUMBER) :]
        if digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) < 20:
            return int(digits)
        raise refuse(f"{text[:60]!r} is no number", "invalid_subject")
    head, _, rest = text.partition(".")
    if head == _URI:
        return "/".join(unescape_token(token) for token in rest.split("."))
    return unquote(text)


@define(eq=False)
class ClusterSubjects:
    """The subjects of one cluster, as one of its nodes writes and reads them.

    Attributes:
        cluster: Its name, one token.
        node: The name of this node, one token.
        limit: Bytes that a subject of the bus may have on this wire.
    """

    cluster: str
    node: str
    limit: int
    mine: str = field(init=False)
    """The beginning of what is for this node alone."""
    answers: str = field(init=False)
    """The beginning of where answers come, before the token."""
    nobody: str = field(init=False)
    """A subject as nodes answer to, at which there is none."""
    echo: str = field(init=False)
    """A reply subject that publications of this node carry: by it the node knows its own."""
    written: Memo[str | int, str] = field(init=False)
    """A subject of the bus as a part of one on the wire. May raise `LocalProtocolError`."""
    handled: Memo[str | int, str] = field(init=False)
    """The subject on the wire of requests for any handler. May raise as `written`."""
    asked: Memo[str | int, str] = field(init=False)
    """The names of such a request, up to the token."""
    published: Memo[str | int, str] = field(init=False)
    """The names of a publication for all: subject and `echo`."""
    read: Memo[str, str | int] = field(init=False)
    """The subject of the bus, by what stands in one on the wire. May raise `RemoteProtocolError`."""
    named: Memo[str, str | int] = field(init=False)
    """The same, by the whole subject of a request or a publication."""
    askers: Memo[str, str] = field(init=False)
    """The node that an answer goes to, by the reply subject without its last token; empty where it is none of ours."""
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
        """The part behind the letter that says what it is."""
        return subject[self._skipped :]

    def pattern(self, pattern: str | int) -> str:
        """A pattern on the wire. May raise `LocalProtocolError`."""
        return self._checked(escape_pattern(pattern))

    def keyed(self, what: str, key: str, rest: str) -> str:
        """A subject of a user or of a client, by its key: `what` stands before that. May raise `LocalProtocolError`."""
        return self._checked(f"{self.cluster}.{what}.{escape_token(key)}.{rest}", self.limit - _BESIDE)

    def _checked(self, text: str, limit: int | None = None) -> str:
        limit = self.limit if limit is None else limit
        if len(text) > limit:
            raise LocalProtocolError(
                f"a subject of {len(text)} bytes on this wire is longer than {limit} (limit: subject)", protocol="nats"
            )
        return text

    def asker(self, reply: str) -> str:
        """The node that an answer goes to; empty where it is none of ours.

        Raises:
            RemoteProtocolError: It is to go where no asker is.
        """
        return self.askers[reply.rpartition(".")[0]]

    def _asker(self, beginning: str) -> str:
        """By what stands before the last token: else who may only ask would publish, in this node's name, whatever it likes."""
        if beginning == self.cluster or beginning.startswith(f"{self.cluster}."):
            if (node := self.source(beginning)) and beginning == self.of_node(node, "a"):
                return node
        elif is_answerable(beginning):
            return ""
        raise refuse(f"an answer is asked for at {beginning[:60]!r}, where no asker hears it", "malformed")

    def source(self, beginning: str) -> str:
        """The node that a publication is from, by its reply subject without its last token; empty where it says none."""
        node = beginning.removeprefix(f"{self.cluster}.n.").partition(".")[0]
        return node if beginning.startswith(f"{self.cluster}.n.") and is_node(node) else ""

    def of_reader(self, reader: int) -> str:
        """The subject at which a reader of this node is given stored publications."""
        return f"{self.cluster}.j.{self.node}.{reader}"

    def of_node(self, node: str, rest: str) -> str:
        """A subject of one node."""
        return f"{self.cluster}.n.{node}.{rest}"


def node_word(subject: str) -> str | None:
    """Find what a subject of one node is for: the token behind its name, ``j`` for its readers; None for any other subject.

    For who does not know the name of the cluster, as readers of recordings: the name of a node is told by its shape.
    """
    tokens = subject.split(".", 4)
    if len(tokens) < 4 or len(tokens[2]) != NODE_LENGTH or not _NODE_NAME.issuperset(tokens[2]):
        return None
    if tokens[1] == "n":
        return tokens[3]
    return "j" if tokens[1] == "j" and len(tokens) == 4 and tokens[3].isdigit() else None


def is_node(name: Any) -> TypeGuard[str]:
    """True for the name of a node: one short token, that can stand in any subject."""
    return isinstance(name, str) and len(name) <= _LONGEST_NODE and name.isascii() and name.isalnum()


def split_key(rest: str) -> tuple[str, str]:
    """Key of a user and the rest. May raise `RemoteProtocolError`."""
    key, dot, subject = rest.partition(".")
    if not dot:
        raise _no_subject(rest)
    return unescape_token(key), subject


def _no_subject(rest: str) -> RemoteProtocolError:
    return refuse(f"{rest[:60]!r} names nobody, or no subject", "invalid_subject")
