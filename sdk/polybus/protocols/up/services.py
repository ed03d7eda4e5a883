"""Services as proto files describe them (eclipse-uprotocol/up-spec, up-core-api/uprotocol/uoptions.proto): names with numbers.

A service has an id and a version, its methods have ids below 8000, its topics from there on. They come from the text of a proto
file, or from what protoc has made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from attrs import field, frozen

from .._protobuf.wire import read_fields
from .names import checked_text
from .proto_text import Declared, Method, Option, ProtoSyntaxError, declared_services
from .uuris import ANY_PART, ANY_VERSION, FIRST_TOPIC, UUri, check_authority

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

_ID, _NAME, _MAJOR, _METHOD = "service_id", "service_name", "service_version_major", "method_id"
_TOPICS: Final = ("publish_topic", "notification_topic")
_SERVICE_NUMBERS: Final = {51100: _ID, 51101: _NAME, 51102: _MAJOR, 51105: _TOPICS[0], 51106: _TOPICS[1]}
_METHOD_NUMBER: Final = 51200
_WANTED: Final = frozenset((*_SERVICE_NUMBERS.values(), _METHOD))
_METHODS, _TOPIC_NUMBERS = range(1, FIRST_TOPIC), range(FIRST_TOPIC, ANY_PART)
_SERVICES, _VERSIONS = range(ANY_PART), range(ANY_VERSION)


@frozen
class Service:
    """A service: what it is called, and the numbers of its methods and topics.

    Attributes:
        name: Its ``service_name``, or where it has none, its name in the proto file.
        id: The type of its entities, 16 bits.
        version: Its major version.
        methods: From names to numbers from 1 to 7FFF.
        topics: From names to numbers from 8000 to FFFE, of publications and of notifications.
    """

    name: str
    id: int
    version: int
    methods: Mapping[str, int] = field(factory=dict)
    topics: Mapping[str, int] = field(factory=dict)

    def entity(self, authority: str, *, instance: int = 0) -> str:
        """The entity that offers it: ``Up(entity=service.entity("vehicle7"))``.

        Args:
            authority: Of the host.
            instance: Which of several on that host.

        Raises:
            ValueError: One of the two cannot be.
        """
        return self._at(authority, instance, 0).entity_text

    def names(self, authority: str | None = None, *, instance: int = 0, prefix: str = "") -> dict[str, Any]:
        """The names of its methods and topics, for ``Up(names=...)``.

        Args:
            authority: Of the host that offers it, for whole addresses. None: numbers alone, of whoever is meant.
            instance: Which of several on that host.
            prefix: Stands in front of each name: ``body.`` for ``body.UpdateDoor``.

        Raises:
            ValueError: There is no such address.
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
            raise ValueError(f"up: no entity: authority={authority!r} and instance={instance!r}, from 0 to FFFE, are needed")
        uri = UUri(authority, instance << 16 | self.id, self.version, resource)
        if uri.is_pattern:
            raise ValueError(f"up: authority={authority!r} is a wildcard: a service is at one host")
        return uri


def services_in(text: str, *, file: str = "services") -> list[Service]:
    """The services of a proto file that have options of uProtocol, in their order.

    Args:
        text: What stands in the file.
        file: What errors call it.

    Raises:
        ValueError: It is no proto file, or an option is missing, wrong or there twice; the error names file and line.
    """

    def place(line: int) -> str:
        return f"{file}, line {line}"

    try:
        found = declared_services(checked_text(text))
    except ProtoSyntaxError as error:
        raise ValueError(f"up: {place(error.line)}: {error}") from error
    return [_checked(one, place) for one in map(_ours, found) if one.options or any(method.options for method in one.methods)]


def _ours(declared: Declared) -> Declared:
    """The same without the options that are of no use here."""

    def of(options: list[Option]) -> list[Option]:
        return [option for option in options if option.name in _WANTED]

    methods = [Method(method.name, of(method.options), method.line) for method in declared.methods]
    return Declared(declared.name, of(declared.options), methods, declared.line)


def service_of(descriptor: ServiceDescriptor) -> Service:
    """The service of a module that protoc has made: ``service_of(body_pb2.DESCRIPTOR.services_by_name["BodyAccess"])``.

    Args:
        descriptor: Of the service. Its options need not be known to the program.

    Raises:
        ValueError: An option is missing, wrong or there twice; the text names the file.
    """
    options = [
        Option(name, _topic(part) if name in _TOPICS and isinstance(part, bytes) else _plain(part), 0)
        for number, part in read_fields(descriptor.GetOptions().SerializeToString())
        if (name := _SERVICE_NUMBERS.get(number)) is not None
    ]
    methods = [Method(method.name, _method_options(method), 0) for method in descriptor.methods]
    return _checked(Declared(descriptor.name, options, methods, 0), lambda line: str(descriptor.file.name))


def _method_options(method: Any) -> list[Option]:
    fields = read_fields(method.GetOptions().SerializeToString())
    return [Option(_METHOD, _plain(part), 0) for number, part in fields if number == _METHOD_NUMBER]


def _plain(part: int | bytes) -> Any:
    return part.decode("utf-8", "replace") if isinstance(part, bytes) else part


def _topic(part: bytes) -> dict[str, Any]:
    names = {1: "id", 2: "name", 4: "resources"}
    return {names[number]: _plain(value) for number, value in read_fields(part) if number in names}


# -- what an option may say --------------------------------------------------------------------------------------------------


def _checked(declared: Declared, place: Callable[[int], str]) -> Service:
    """The service that is declared. May raise `ValueError`, which names the place."""

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
            raise wrong(line, f"{name!r} is no name of a topic: it is text without a slash")
        taken = name if name in table else called_by.get(id)
        if taken is not None:
            raise wrong(line, f"{name!r} with {id:X}, and before it {taken!r} with {table[taken]:X}: each has one of its own")
        table[name], called_by[id] = id, name

    of, line = f"the service {declared.name}", declared.line
    id = number(declared.options, _ID, of, line, _SERVICES)
    version = number(declared.options, _MAJOR, of, line, _VERSIONS)
    called = [str(option.value) for option in declared.options if option.name == _NAME]
    methods: dict[str, int] = {}
    topics: dict[str, int] = {}
    called_by: dict[int, str] = {}  # methods and topics have no number in common
    for method in declared.methods:
        method_id = number(method.options, _METHOD, f"the method {method.name}", method.line, _METHODS)
        add(methods, method.name, method_id, method.line)
    for option in declared.options:
        if option.name in _TOPICS:
            said = option.value if isinstance(option.value, dict) else {}
            if "resources" in said and "id" not in said:
                continue  # one topic for each resource, whose numbers are those of an enum
            what = f"the id of the topic {said.get('name')!r}"
            add(topics, said.get("name"), within(said.get("id"), what, option.line, _TOPIC_NUMBERS), option.line)
    return Service((called or [declared.name])[0], id, version, methods, topics)
