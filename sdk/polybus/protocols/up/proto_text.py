"""The services of a proto file: of its text, read as far as is needed for their options.

All else of the language (protobuf.dev, proto3 and editions) is passed over: messages, enums, other options. What is read: the
services of the file, their options and those of their methods, whose values are constants or messages in text format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from attrs import define, frozen

_TOKEN: Final = re.compile(
    r"""(?P<gap>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)|(?P<text>"(?:[^"\\\n]+|\\.)*+"|'(?:[^'\\\n]+|\\.)*+')"""
    r"|(?P<word>[A-Za-z_][\w.]*|[0-9](?:[\w.]|(?<=[eE])[+-])*)|(?P<mark>.)",
    re.S,
)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_PACKAGE: Final = "uprotocol."
_OPENING: Final = {"{": "}", "<": ">", "[": "]"}
_DEEPEST: Final = 64
"""Blocks in each other."""


class ProtoSyntaxError(ValueError):
    """The text is no proto file.

    Args:
        text: What was seen, and what is expected there.
        line: Where that is, from 1.
    """

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line: int = line


@frozen
class Option:
    """An option of uProtocol: its name without the package, its value, and the line where it stands."""

    name: str
    value: Any
    line: int


@frozen
class Method:
    """A method: its name, its options, and the line where it stands."""

    name: str
    options: list[Option]
    line: int


@frozen
class Declared:
    """A service: its name, options and methods, and the line where it stands."""

    name: str
    options: list[Option]
    methods: list[Method]
    line: int


def declared_services(text: str) -> list[Declared]:
    """The services of a proto file, in their order. May raise `ProtoSyntaxError`."""
    return list(_Reader(text).services())


@define(eq=False)
class _Token:
    text: str
    line: int
    quoted: bool = False


def _tokens(text: str) -> Iterator[_Token]:
    line = 1
    for found in _TOKEN.finditer(text):
        token = found[0]
        if found.lastgroup != "gap":
            if token == "/" and text.startswith("/*", found.start()):
                raise ProtoSyntaxError("a comment that does not end", line)
            if token in "\"'":
                raise ProtoSyntaxError("a text that does not end in its line", line)
            yield _Token(token, line, found.lastgroup == "text")
        line += token.count("\n")
    yield _Token("", line)


class _Reader:
    """Reads one token after the other; the last one, of no text, is the end of the file."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def services(self) -> Iterator[Declared]:
        """The services; all else on their level is passed over."""
        while self._next.text:
            token = self._take()
            if token.text == "service" and not token.quoted:
                yield self._service(token.line)
            elif token.text != ";":
                self._pass_over(token)

    def _take(self) -> _Token:
        token = self._next
        if not token.text:
            raise ProtoSyntaxError("the file ends within a declaration", token.line)
        self._next = next(self._tokens)
        return token

    def _expect(self, text: str) -> None:
        token = self._take()
        if token.text != text or token.quoted:
            raise ProtoSyntaxError(f"{token.text[:40]!r} where {text!r} is expected", token.line)

    def _name(self, what: str) -> _Token:
        token = self._take()
        if token.quoted or not token.text.isidentifier():
            raise ProtoSyntaxError(f"{token.text[:40]!r} is no name of a {what}", token.line)
        return token

    def _pass_over(self, token: _Token) -> None:
        """The rest of a declaration that begins with a token: to its semicolon, or the end of its block."""
        while True:
            if token.text == ";" and not token.quoted:
                return
            if token.text == "}" and not token.quoted:
                raise ProtoSyntaxError("'}' that closes nothing", token.line)
            if token.text == "{" and not token.quoted:
                self._leave_block()
                if self._next.text != ";":  # of an option's value; other blocks end a declaration
                    return
            token = self._take()

    def _leave_block(self) -> None:
        depth = 1
        while depth:
            token = self._take()
            if not token.quoted:
                depth += (token.text == "{") - (token.text == "}")

    def _service(self, line: int) -> Declared:
        found = Declared(self._name("service").text, [], [], line)
        self._expect("{")
        while (token := self._take()).text != "}" or token.quoted:
            if token.text == "option":
                found.options.extend(self._option(token.line))
            elif token.text == "rpc":
                found.methods.append(self._method(token.line))
            elif token.text != ";":
                self._pass_over(token)
        return found

    def _method(self, line: int) -> Method:
        method = Method(self._name("method").text, [], line)
        while self._next.text not in ("{", ";"):
            self._take()
        if self._take().text == ";":
            return method
        while (token := self._take()).text != "}" or token.quoted:
            if token.text == "option":
                method.options.extend(self._option(token.line))
            elif token.text != ";":
                self._pass_over(token)
        return method

    def _option(self, line: int) -> list[Option]:
        """An option of uProtocol, or of another package, which is passed over."""
        name = ""
        while self._next.text != "=":
            name += self._take().text
            if len(name) > 1000:
                raise ProtoSyntaxError("the name of an option does not end", line)
        self._expect("=")
        value = self._value(0)
        self._expect(";")
        plain = name.removeprefix("(").removesuffix(")").removeprefix(".").removeprefix(_PACKAGE)
        return [Option(plain, value, line)] if name.startswith("(") and "." not in plain else []

    def _value(self, depth: int) -> Any:
        """A constant, or a message in text format, whose fields become those of a dict."""
        token = self._take()
        if depth > _DEEPEST:
            raise ProtoSyntaxError(f"blocks that lie deeper than {_DEEPEST} in each other", token.line)
        if token.quoted:
            text = _unquoted(token)
            while self._next.quoted:  # texts beside each other are one
                text += _unquoted(self._take())
            return text
        if token.text == "[":
            return self._list(depth)
        if token.text in _OPENING:
            return self._fields(_OPENING[token.text], depth)
        if token.text in "-+":
            sign = -1 if token.text == "-" else 1
            value = self._value(depth + 1)
            return sign * value if isinstance(value, int) else value
        if _NUMBER.fullmatch(token.text):
            return _number(token)
        if token.text[0].isalnum() or token.text[0] == "_":
            return token.text
        raise ProtoSyntaxError(f"{token.text[:40]!r} is no value", token.line)

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while self._next.text != "]":
            values.append(self._value(depth + 1))
            if self._next.text == ",":
                self._take()
        self._take()
        return values

    def _fields(self, end: str, depth: int) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        while self._next.text != end:
            token = self._take()
            name = token.text
            if name == "[":  # the name of an extension
                while (part := self._take().text) != "]":
                    name += part
            elif token.quoted or not name.isidentifier():
                raise ProtoSyntaxError(f"{name[:40]!r} is no name of a field", token.line)
            if self._next.text == ":":
                self._take()
            fields[name] = self._value(depth + 1)
            if self._next.text in (",", ";"):
                self._take()
        self._take()
        return fields


def _number(token: _Token) -> int:
    text = token.text
    try:
        return int(text, 8 if text[0] == "0" and text.isdigit() else 0)
    except ValueError as error:
        raise ProtoSyntaxError(f"{text[:40]!r} is no number", token.line) from error


_ESCAPE: Final = re.compile(r"\\(?:[xX](?P<hex>[0-9a-fA-F]{1,2})|(?P<octal>[0-7]{1,3})|(?P<letter>.))", re.S)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _unquoted(token: _Token) -> str:
    return _ESCAPE.sub(_escaped, token.text[1:-1])


def _escaped(found: re.Match[str]) -> str:
    if found["letter"]:
        return _LETTERS.get(found["letter"], found["letter"])
    return chr(int(found["hex"], 16) if found["hex"] else int(found["octal"], 8))
