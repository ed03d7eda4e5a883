"""Reads the names and numbers of services from proto files (eclipse-uprotocol/up-spec, up-core-api/uprotocol/uoptions.proto).

They are in the text of a proto file or in what protoc generates. The parser reads only the options of services and methods,
which are constants or messages in text format, and skips the rest of the language (protobuf.dev, proto3 and editions).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field, frozen

from ...plugins.protobuf import read_fields
from .._uprotocol import FIRST_TOPIC
from .names import checked_text
from .uuris import ANY_PART, ANY_VERSION, UUri, check_authority

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

_TOKEN: Final = re.compile(
    r"""(?P<gap>\s+|//[^\n]*|\#[^\n]*|/\*.*?\*/)|(?P<text>"(?:[^"\\\n]+|\\.)*+"|'(?:[^'\\\n]+|\\.)*+')"""
    r"|(?P<word>[A-Za-z_][\w.]*|[0-9](?:[\w.]|(?<=[eE])[+-])*)|(?P<mark>.)",
    re.S,
)
_NUMBER: Final = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_PACKAGE: Final = "uprotocol."
_OPENING: Final = {"{": "}", "<": ">", "[": "]"}
_DEEPEST: Final = 64  # Maximum depth of nested blocks


class ProtoSyntaxError(ValueError):
    def __init__(self, text: str, line: int) -> None:
        super().__init__(text)
        self.line: int = line


@frozen
class Option:
    name: str
    value: Any
    line: int


@frozen
class Declared:
    """A service, or a method, which has no `methods`."""

    name: str
    options: list[Option]
    methods: list[Declared]
    line: int


@define(eq=False)
class _Token:
    text: str  # With its quotation marks if `quoted`, so that it differs from any mark or word
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
                raise ProtoSyntaxError("a string that does not end in its line", line)
            yield _Token(token, line, found.lastgroup == "text")
        line += token.count("\n")
    yield _Token("", line)


class _Reader:
    """Reads tokens one by one. A token without text marks the end of the file."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def services(self) -> Iterator[Declared]:
        while self._next.text:
            token = self._take()
            if token.text == "service":
                yield self._declaration("service", token.line)
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
        if token.text != text:
            raise ProtoSyntaxError(f"{token.text[:40]!r} where {text!r} is expected", token.line)

    def _name(self, what: str) -> _Token:
        token = self._take()
        if not token.text.isidentifier():
            raise ProtoSyntaxError(f"{token.text[:40]!r} is not the name of a {what}", token.line)
        return token

    def _pass_over(self, token: _Token) -> None:
        """Skip the rest of a declaration, up to its semicolon or the end of its block."""
        while True:
            if token.text == ";":
                return
            if token.text == "}":
                raise ProtoSyntaxError("'}' without '{'", token.line)
            if token.text == "{":
                self._leave_block()
                if self._next.text != ";":  # after an option's value; other blocks end a declaration
                    return
            token = self._take()

    def _leave_block(self) -> None:
        depth = 1
        while depth:
            token = self._take()
            depth += (token.text == "{") - (token.text == "}")

    def _declaration(self, what: str, line: int) -> Declared:
        found = Declared(self._name(what).text, [], [], line)
        if what == "method":
            while self._next.text not in ("{", ";"):
                self._take()
            if self._next.text == ";":
                self._take()
                return found
        self._expect("{")
        while (token := self._take()).text != "}":
            if token.text == "option":
                found.options.extend(self._option(token.line))
            elif token.text == "rpc" and what == "service":
                found.methods.append(self._declaration("method", token.line))
            elif token.text != ";":
                self._pass_over(token)
        return found

    def _option(self, line: int) -> list[Option]:
        """Read an option. The list is empty unless the option is one of uProtocol's."""
        name = ""
        while self._next.text != "=":
            name += self._take().text
            if len(name) > 1000:
                raise ProtoSyntaxError("the name of an option does not end", line)
        self._expect("=")
        value = self._value(0)
        self._expect(";")
        plain = name.removeprefix("(").removesuffix(")").removeprefix(".").removeprefix(_PACKAGE)
        return [Option(plain, value, line)] if name.startswith("(") and plain in _WANTED else []

    def _value(self, depth: int) -> Any:
        """Read a constant, or a message in text format as a dict."""
        token = self._take()
        if depth > _DEEPEST:
            raise ProtoSyntaxError(f"blocks nested deeper than {_DEEPEST}", token.line)
        if token.quoted:
            text = _unquoted(token)
            while self._next.quoted:  # adjacent texts are one
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
        raise ProtoSyntaxError(f"{token.text[:40]!r} is not a value", token.line)

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
            elif not name.isidentifier():
                raise ProtoSyntaxError(f"{name[:40]!r} is not the name of a field", token.line)
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
        raise ProtoSyntaxError(f"{text[:40]!r} is not a number", token.line) from error


_ESCAPE: Final = re.compile(r"\\(?:[xX](?P<hex>[0-9a-fA-F]{1,2})|(?P<octal>[0-7]{1,3})|(?P<letter>.))", re.S)
_LETTERS: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


def _unquoted(token: _Token) -> str:
    return _ESCAPE.sub(_escaped, token.text[1:-1])


def _escaped(found: re.Match[str]) -> str:
    if found["letter"]:
        return _LETTERS.get(found["letter"], found["letter"])
    return chr(int(found["hex"], 16) if found["hex"] else int(found["octal"], 8))


_ID, _NAME, _MAJOR, _METHOD = "service_id", "service_name", "service_version_major", "method_id"
_TOPICS: Final = ("publish_topic", "notification_topic")
_SERVICE_NUMBERS: Final = {51100: _ID, 51101: _NAME, 51102: _MAJOR, 51105: _TOPICS[0], 51106: _TOPICS[1]}
_METHOD_NUMBER: Final = 51200
_WANTED: Final = frozenset((*_SERVICE_NUMBERS.values(), _METHOD))
_METHODS, _TOPIC_NUMBERS = range(1, FIRST_TOPIC), range(FIRST_TOPIC, ANY_PART)
_SERVICES, _VERSIONS = range(ANY_PART), range(ANY_VERSION)


@frozen
class Service:
    """A service with the numbers of its methods and topics.

    Attributes:
        name: The ``service_name`` or, if there is none, the name in the proto file.
        id: Type of the service's entities, a 16-bit number.
        version: Major version of the service.
        methods: Numbers of the methods by name, from 1 to 7FFF.
        topics: Numbers of publications and notifications by name, from 8000 to FFFE.
    """

    name: str
    id: int
    version: int
    methods: Mapping[str, int] = field(factory=dict)
    topics: Mapping[str, int] = field(factory=dict)

    def entity(self, authority: str, *, instance: int = 0) -> str:
        """Return the address of the entity that offers the service: ``Up(entity=service.entity("vehicle7"))``.

        Args:
            authority: Name of the host.
            instance: Instance number on that host.

        Raises:
            ValueError: If the authority or the instance is invalid.
        """
        return self._at(authority, instance, 0).entity_text

    def names(self, authority: str | None = None, *, instance: int = 0, prefix: str = "") -> dict[str, Any]:
        """Return the names of the methods and topics, as a table for ``Up(names=...)``.

        Args:
            authority: Host that offers the service, for a table of whole addresses. Without it the table has only numbers,
                which refer to this entity or to the peer.
            instance: Instance number on that host.
            prefix: Prefix to add to each name, such as ``body.`` for ``body.UpdateDoor``.

        Raises:
            ValueError: If the authority or the instance is invalid.
        """
        table: dict[str, Any] = {}
        for name, number in (*self.methods.items(), *self.topics.items()):
            place: Any = number if authority is None else str(self._at(authority, instance, number))
            name = prefix + name
            table[name] = [table[name], place] if name in table else place
        return table

    def _at(self, authority: str, instance: int, resource: int) -> UUri:
        check_authority(authority)
        if not authority or type(instance) is not int or not 0 <= instance < ANY_PART:
            raise ValueError(f"up: not an entity: authority={authority!r}, instance={instance!r} (from 0 to FFFE)")
        uri = UUri(authority, instance << 16 | self.id, self.version, resource)
        if uri.is_pattern:
            raise ValueError(f"up: authority={authority!r} is a wildcard: a service is at one host")
        return uri


def services_in(text: str, *, file: str = "services") -> list[Service]:
    """Return the services of a proto file with uProtocol options, in order.

    Args:
        text: Content of the file.
        file: Name of the file, for error texts.

    Raises:
        ValueError: If the file is invalid, or an option is missing, invalid or duplicate. The text names the file and line.
    """

    def place(line: int) -> str:
        return f"{file}, line {line}"

    try:
        found = list(_Reader(checked_text(text)).services())
    except ProtoSyntaxError as error:
        raise ValueError(f"up: {place(error.line)}: {error}") from error
    return [_checked(one, place) for one in found if one.options or any(method.options for method in one.methods)]


def service_of(descriptor: ServiceDescriptor) -> Service:
    """Return a service from a module that protoc has generated.

    For example: ``service_of(body_pb2.DESCRIPTOR.services_by_name["BodyAccess"])``.

    Args:
        descriptor: Descriptor of the service. The program need not know its options.

    Raises:
        ValueError: If an option is missing, invalid or duplicate. The text names the file.
    """
    options = [
        Option(name, _topic(part) if name in _TOPICS and isinstance(part, bytes) else _plain(part), 0)
        for number, part in read_fields(descriptor.GetOptions().SerializeToString())
        if (name := _SERVICE_NUMBERS.get(number)) is not None
    ]
    methods = [Declared(method.name, _method_options(method), [], 0) for method in descriptor.methods]
    return _checked(Declared(descriptor.name, options, methods, 0), lambda line: str(descriptor.file.name))


def _method_options(method: Any) -> list[Option]:
    fields = read_fields(method.GetOptions().SerializeToString())
    return [Option(_METHOD, _plain(part), 0) for number, part in fields if number == _METHOD_NUMBER]


def _plain(part: int | bytes) -> Any:
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def _topic(part: bytes) -> dict[str, Any]:
    names = {1: "id", 2: "name", 4: "resources"}
    return {names[number]: _plain(value) for number, value in read_fields(part) if number in names}


# -- checks of options -------------------------------------------------------------------------------------------------------


def _checked(declared: Declared, place: Callable[[int], str]) -> Service:
    def wrong(line: int, text: str) -> ValueError:
        return ValueError(f"up: {place(line)}: {text}")

    def number(options: Iterable[Option], name: str, of: str, line: int, allowed: range) -> int:
        given = [option for option in options if option.name == name]
        if len(given) != 1:
            several = f"has (uprotocol.{name}) {len(given)} times" if given else f"has no (uprotocol.{name})"
            raise wrong(given[1].line if given else line, f"{of} {several}")
        return within(given[0].value, f"(uprotocol.{name}) of {of}", given[0].line, allowed)

    def within(value: Any, what: str, line: int, allowed: range) -> int:
        if type(value) is not int or value not in allowed:
            raise wrong(line, f"{what} is {value!r}, not a number from {allowed.start:X} to {allowed.stop - 1:X} (hexadecimal)")
        return value

    def add(table: dict[str, int], name: Any, id: int, line: int) -> None:
        if not isinstance(name, str) or not name or "/" in name:
            raise wrong(line, f"{name!r} is not the name of a topic: a name is a string without a slash")
        taken = name if name in table else called_by.get(id)
        if taken is not None:
            raise wrong(line, f"{name!r} with {id:X}, and before it {taken!r} with {table[taken]:X}: each has its own")
        table[name], called_by[id] = id, name

    of, line = f"the service {declared.name}", declared.line
    id = number(declared.options, _ID, of, line, _SERVICES)
    version = number(declared.options, _MAJOR, of, line, _VERSIONS)
    called = [str(option.value) for option in declared.options if option.name == _NAME]
    methods: dict[str, int] = {}
    topics: dict[str, int] = {}
    called_by: dict[int, str] = {}  # methods and topics share no numbers
    for method in declared.methods:
        method_id = number(method.options, _METHOD, f"the method {method.name}", method.line, _METHODS)
        add(methods, method.name, method_id, method.line)
    for option in declared.options:
        if option.name in _TOPICS:
            said = option.value if isinstance(option.value, dict) else {}
            if "resources" in said and "id" not in said:
                continue  # a topic per resource, with numbers from an enum
            what = f"the id of the topic {said.get('name')!r}"
            add(topics, said.get("name"), within(said.get("id"), what, option.line, _TOPIC_NUMBERS), option.line)
    return Service((called or [declared.name])[0], id, version, methods, topics)
