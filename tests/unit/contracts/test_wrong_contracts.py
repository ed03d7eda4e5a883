"""Contracts and implementations that cannot be: they say which class and method, and what to write instead."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sized
from textwrap import indent
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, overload

import pytest
from attrs import frozen

from polybus import Bus, Channel, Context, Reply, method, notify

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
USED: list[Any] = [AsyncIterator, Awaitable, Callable, Channel, ClassVar, Context, Generator, Iterator, Reply, Self, overload]
"""What contracts and implementations of the tables use, beside what this module has."""


@frozen
class User:
    id: int


class Empty(Protocol):
    pass


class NoProtocol:
    async def get(self, id: int) -> User: ...  # type: ignore[empty-body]


class DerivedFromOne(Empty):
    async def get(self, id: int) -> User: ...  # type: ignore[empty-body]


class Open(Protocol[T_co]):
    async def get(self, id: int) -> T_co: ...


class OpenInside(Protocol[T]):
    async def put(self, users: "list[T]") -> None: ...


class BadText(Protocol):
    async def get(self, id: Any) -> User: ...


BadText.get.__annotations__["id"] = "list["


def written(head: str, body: str) -> Any:
    """The class of that head and body, as somebody would write it here."""
    made: dict[str, Any] = {}
    exec(f"class {head}:\n{indent(body, '    ')}", globals() | {used.__name__: used for used in USED}, made)
    return made[head.partition("(")[0]]


GET = "async def get(self, id: int) -> User: ...\n"
WRONG: list[tuple[str, str]] = [
    ("async def rename(self, id: int, name: str) -> User: ...",
     r"rename takes 'id' and 'name', but a message has one body: put them into one class .*query: Rename\)"),
    ("async def get(self, *ids: int) -> User: ...", r"get takes '\*ids: int', but a message has one body: write one parameter"),
    ("async def get(self, **names: int) -> User: ...", r"get takes '\*\*names: int'"),
    ("async def get() -> User: ...", r"get has no self: write it as the first parameter"),
    ("async def get(id: int) -> User: ...", r"get has no self: write it as the first parameter, before 'id'"),
    ("async def get(self, id) -> User: ...", r"get has no type for 'id': write `id: GetUser`, or Any"),
    ("async def get(self, id: int): ...", r"get has no return type: write `-> User`, or `-> None`"),
    ("async def get(self, price: 'Decimal') -> User: ...", r"get: .* 'price' does not resolve, because 'Decimal' is unknown"),
    ("async def get(self, id: int) -> 'Decimal': ...", r"get returns Decimal, .*: import it outside of `if TYPE_CHECKING:`"),
    ("async def watch(self, id: int) -> AsyncIterator[User]: ...",
     r"watch is `async def` and returns .*: a stream is written `def watch\(self, ...\) -> AsyncIterator"),
    (GET + "def watch(self, id: int) -> Iterator[User]: ...",
     r"watch returns .*, which blocks: a stream is written `def watch"),
    (GET + "def count(self) -> int: ...",
     r"count is a plain `def` among others that are async: write `async def count\(self, \.\.\.\)`; a stream is "
     r"written `def count\(self, \.\.\.\) -> AsyncIterator\[T\]`; a contract for threads"),
    (GET + "async def watch(self, id: int) -> User:\n    yield User(id)",
     r"watch yields and returns User: a stream is written `def watch\(self, \.\.\.\) -> AsyncIterator"),
    ("def watch(self, id: int) -> AsyncIterator['Decimal']: ...", r"watch returns .*Decimal.*\], .* not resolve: import it"),
    ("def watch(self, id: int) -> 'AsyncIterator[Decimal]': ...", r"watch returns .*\[Decimal\], .* not resolve: import it"),
    ("@notify\nasync def touch(self, id: int) -> User: ...", "touch is a notification and returns User: .* write `-> None`"),
    ("@notify\ndef touch(self, id: int) -> AsyncIterator[User]: ...", r"touch is a notification .*Async.*: .* write `-> None`"),
    ("@method(timeout=3)\n@notify\nasync def touch(self) -> None: ...", r"touch .*, which has no answer: leave out timeout="),
    ("def count(self) -> Reply[int]: ...", r"count returns polybus\.Reply\[int\]: write `async def count"),
    (GET + "def count(self) -> Awaitable[int]: ...", r"count returns .*Awaitable\[int\]: write `async def count"),
    ("async def get(self, id: int) -> Self: ...", r"get cannot be sent, what it returns is .*Self"),
    ("async def get(self, ids: [int]) -> User: ...", r"get cannot be sent, the type of 'ids' .* not a type, write list\[int\]"),
    (GET + "async def __call__(self, id: int) -> User: ...", r"__call__ is a special method of Python: give it another name"),
    ("async def __aenter__(self) -> User: ...", r"__aenter__ is a special method of Python"),
    ("@functools.cached_property\ndef name(self) -> str: ...", r"name is no method but a cached_property"),
    (GET + "class Query: ...", r"Query is no method but a type: a contract has only methods"),
    ("async def get(self, ctx: Context) -> User: ...", r"get takes 'ctx', Context, which only handlers have: leave it out"),
    ("async def talk(self, channel: Channel[int, int]) -> None: ...", r"talk takes 'channel', .*bus\.channel\(\) opens a"),
    ("name: str\n" + GET, r"name is an attribute, not a method: write `async def name\(self\)"),
    ("limit: ClassVar[int] = 3\n" + GET, r"limit is an attribute"),
    ("@property\ndef name(self) -> str: ...", r"name is a property: a contract has only methods"),
    ("@staticmethod\nasync def get(id: int) -> User: ...", r"get is a staticmethod"),
    ("@classmethod\nasync def get(cls, id: int) -> User: ...", r"get is a classmethod"),
    ("@overload\nasync def get(self, id: int) -> User: ...\n@overload\nasync def get(self, id: str) -> User: ...",
     r"get is overloaded, but a subject has one type: write a union, or two methods"),
    ("async def _get(self, id: int) -> User: ...", r"_get is private: methods of a contract are public"),
    ("async def get(self, call: Callable[[], int]) -> User: ...", r"get cannot be sent, the type of 'call' is .*Callable"),
    ("async def get(self) -> Generator[int, None, None] | object: ...", r"get cannot be sent, what it returns is .*Generator"),
    (GET + "@method('get')\nasync def find(self) -> User: ...",
     r"find and Wrong\.get have the same subject 'user\.get': rename"),
    ("@method('get one.')\n" + GET, r"get would have the invalid subject 'user\.get one\.': .*empty token"),
    ("@method('*')\n" + GET, r"get would have the invalid subject 'user\.\*': .*pattern"),
    ("@method(0x10001)\n" + GET, r"get has its own subject 65537, which cannot have the prefix 'user': leave out the prefix"),
]  # fmt: skip
"""The body of a protocol class, and what is said of it."""
NO_CONTRACTS: list[tuple[Any, str]] = [
    (NoProtocol,
     r"NoProtocol'> is not a contract: use a Protocol class, as in `class Users\(Protocol\).*; derive NoProtocol from"),
    (7, "7 is not a contract: use a Protocol class"),
    ({}, r"\{\} is not a contract"),
    (None, r"None is not a contract"),
    (Sized, r"Sized'> is not a contract"),
    (DerivedFromOne, r"DerivedFromOne'> is not a contract: .*; derive DerivedFromOne from typing\.Protocol itself"),
    ("Users", "'Users' is not a contract"),
    (list[int], r"list\[int\] is not a contract"),
    (Empty, "Empty has no methods: write `async def get"),
    (BadText, r"BadText\.get: an annotation does not resolve: .*list\["),
    (Open, r"Open\.get has the open type variable .*T_co: set it where the contract is used, as in Open\[User\]"),
    (Open["User"], r"Open\.get cannot be sent, what it returns is .*'User'.*: write the class itself, without quotes"),
    (OpenInside, r"OpenInside\.put has the open type variable .*T"),
]  # fmt: skip


def refuses(contract: Any, says: str) -> None:
    bus = Bus()
    with pytest.raises(TypeError, match=f"(?s){says}"):
        bus.client(contract, "user")
    with pytest.raises(TypeError, match=f"(?s){says}"):
        bus.implement(contract, object(), "user")


@pytest.mark.parametrize(("body", "says"), WRONG)
def test_a_wrong_method_is_an_error_at_once_that_says_what_to_write(body: str, says: str) -> None:
    refuses(written("Wrong(Protocol)", body), rf"Wrong\.{says}")


@pytest.mark.parametrize(("contract", "says"), NO_CONTRACTS, ids=lambda one: str(getattr(one, "__name__", one)))
def test_what_is_no_contract_is_an_error_at_once_that_says_so(contract: Any, says: str) -> None:
    refuses(contract, says)


def test_a_prefix_is_a_text_that_makes_subjects() -> None:
    bus: Any = Bus()
    with pytest.raises(TypeError, match="the prefix 7 of Users must be a string such as 'user', not int"):
        bus.client(Users, 7)
    with pytest.raises(TypeError, match=r"the prefix 'user\.' of Users: polybus adds the dot, write 'user'"):
        bus.client(Users, "user.")
    with pytest.raises(TypeError, match=r"the prefix '//vehicle/users/1/' of Users: polybus adds the slash, write '//vehicle"):
        bus.client(Users, "//vehicle/users/1/")
    with pytest.raises(
        TypeError, match=r"Users\.get would have the invalid subject '_polybus\.get': .*are reserved for polybus"
    ):
        bus.client(Users, "_polybus")


def test_a_prefix_that_is_a_uri_goes_on_with_a_slash() -> None:
    bus = Bus()
    bus.implement(Users, UsersInMemory(), "//vehicle/users/1")
    with pytest.raises(TypeError, match="'//vehicle/users/1/get' is already handled by UsersInMemory.get"):
        bus.handle("//vehicle/users/1/get")(lambda: None)


# -- decorators -----------------------------------------------------------------------------------------------------------


def test_a_decorator_stands_above_a_function() -> None:
    with pytest.raises(TypeError, match=r"@notify must be directly above the `def` of a method, not above <staticmethod"):
        notify(staticmethod(print))
    with pytest.raises(TypeError, match=r"@method\(\.\.\.\) must be directly above the `def`"):
        method("get")(print)


def test_a_method_is_marked_once() -> None:
    with pytest.raises(TypeError, match=r"get has @method\(\.\.\.\) twice: use one for name and timeout"):

        class Twice(Protocol):
            @method("one")
            @method(timeout=3)
            async def get(self, id: int) -> User: ...

    with pytest.raises(TypeError, match=r"touch has @notify twice: leave one out"):

        class Told(Protocol):
            @notify
            @notify
            async def touch(self, id: int) -> None: ...


@pytest.mark.parametrize(
    ("name", "more"), [(1.5, "$"), (True, "$"), (b"get", "$"), (print, r": write @method\(\) with its parentheses")]
)
def test_a_name_is_text_or_a_number_and_no_function(name: Any, more: str) -> None:
    with pytest.raises(TypeError, match=r"a name, for example @method\('get.one', timeout=5\)" + more):
        method(name)


@pytest.mark.parametrize(("timeout", "error"), [("5", TypeError), (-1, ValueError), (float("inf"), ValueError)])
def test_a_time_is_a_number_of_seconds(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout="):
        method(timeout=timeout)


# -- implementations --------------------------------------------------------------------------------------------------------


class Users(Protocol):
    async def get(self, id: int) -> User: ...
    def watch(self, id: int) -> AsyncIterator[User]: ...


class UsersInMemory:
    async def get(self, id: int) -> User:
        return User(id)

    async def watch(self, id: int) -> AsyncIterator[User]:
        yield User(id)


class Incomplete:
    async def get(self, id: int) -> User:
        return User(id)


class Inherited(Users):
    async def get(self, id: int) -> User:
        return User(id)


WRITE_GET = r"; write `async def get\(self, id: int\)`, for Users\.get"
UNFIT: list[tuple[str, str]] = [
    ("async def get(self, id: int, name: str) -> User: ...", r"get: both 'id' and 'name' could be .*" + WRITE_GET),
    ("async def get(self, id: int, name: str = '') -> User: ...", r"get: both 'id' and 'name' could be the body"),
    ("async def get(self, *ids: int) -> User: ...", r"get: \*ids cannot be filled .*" + WRITE_GET),
    ("def get(self, id: int) -> Iterator[User]:\n    yield User(id)", r"get is a plain generator.*" + WRITE_GET),
    ("def watch(self, id: int) -> Iterator[User]:\n    yield User(id)",
     r"watch is a plain generator.*; write `async def watch\(self, id: int\)` with `yield`, for"),
    ("@property\ndef get(self) -> User:\n    return User(7)", r"get is .*User\(id=7\), .* is a method: write `async def get"),
    ("@method('get.one')\n" + GET, r"get has its own @method or @notify: move it to Users\.get"),
    ("async def get(id: int) -> User: ...", r"get takes no body, but Users\.get takes 'id'"),
    ("async def get() -> User: ...", r"get has no signature.*; write `async def get\(self, id: int\)`"),
    ("async def get(self) -> User: ...", r"get takes no body, but Users\.get takes 'id'"),
    ("async def get(self, id: int) -> User | None: ...", r"get returns .*User \| None, but Users\.get returns User"),
    ("async def get(self, id: int) -> int: ...", r"get returns int, but Users\.get returns User"),
    ("get = lambda self, id: User(id)", r"<lambda> is a plain `def`, but Users\.get is async"),
    ("def get(self, id: int) -> User: ...", r"get is a plain `def`, but Users\.get is async: write `async def get"),
    ("get = 7", r"get is 7, but Users\.get is a method: write `async def get\(self, id: int\)`"),
    ("async def get(self, id: 'Decimal') -> User: ...", r"get: .* 'id' does not resolve, because 'Decimal' is unknown"),
    ("async def get(self, id: str) -> User: ...", r"get reads 'id' as str, but .* takes int: change the annotation or Users"),
    ("async def get(self, channel: Channel[int, User]) -> None: ...", r"get takes a Channel, but Users\.get has none"),
    ("async def get(self, id: int) -> AsyncIterator[User]:\n    yield User(id)",
     r"get is a stream, but Users\.get returns a single"),
    ("async def watch(self, id: int) -> User: ...",
     r"watch returns a single answer, .* is a stream: write `async .* with `yield`"),
    ("async def watch(self, id: int) -> AsyncIterator[int]:\n    yield id", r"watch returns int, but .*\.watch returns User"),
]  # fmt: skip
"""What a class that would fit otherwise has in place of one method, and what is said of it."""
NO_IMPLEMENTATIONS: list[tuple[Any, str]] = [
    (None, r"None does not implement Users: pass an object with its methods"),
    (Users, r"Users is a class: pass an object"),
    (UsersInMemory, r"UsersInMemory is a class: pass an object, bus\.implement\(Users, UsersInMemory\(\), \.\.\.\)"),
    (Incomplete(), r"Incomplete has no method 'watch' of Users: write `async def watch\(self, id: int\)` with `yield`"),
    (Inherited(), r"Inherited\.watch is inherited from the contract, where it does nothing: write `async def watch"),  # type: ignore[abstract]
]


@pytest.mark.parametrize(("body", "says"), UNFIT)
def test_a_method_that_does_not_fit_is_an_error_and_nothing_is_registered(body: str, says: str) -> None:
    bus = Bus()
    with pytest.raises(TypeError, match=rf"Unfit\.{says}"):
        bus.implement(Users, written("Unfit(UsersInMemory)", body)(), "user")
    assert "0 handlers" in repr(bus)


@pytest.mark.parametrize(("implementation", "says"), NO_IMPLEMENTATIONS)
def test_what_is_no_implementation_is_an_error_and_nothing_is_registered(implementation: Any, says: str) -> None:
    bus = Bus()
    with pytest.raises(TypeError, match=says):
        bus.implement(Users, implementation, "user")
    assert "0 handlers" in repr(bus)


def test_a_default_of_the_contract_has_to_be_one_of_the_implementation_too() -> None:
    class Greets(Protocol):
        async def greet(self, name: str = ...) -> str: ...

    class Demands:
        async def greet(self, name: str) -> str:
            return name

    with pytest.raises(TypeError, match=r"greet: 'name' has no default, but it has one in Greets\.greet"):
        Bus().implement(Greets, Demands())  # type: ignore[arg-type,unused-ignore]


def test_a_body_that_no_caller_sends_needs_a_default() -> None:
    class Counts(Protocol):
        async def count(self) -> int: ...

    class CountsSome:
        async def count(self, most: int) -> int:
            return most

    with pytest.raises(TypeError, match=r"takes 'most', but Counts\.count takes nothing: leave it out, or give it a default"):
        Bus().implement(Counts, CountsSome())  # type: ignore[arg-type,unused-ignore]


def test_what_an_implementation_does_not_annotate_is_as_the_contract_says() -> None:
    class Unannotated:
        async def get(self, id):  # type: ignore[no-untyped-def]
            return User(id)

        async def watch(self, id):  # type: ignore[no-untyped-def]
            yield User(id)

    bus = Bus()
    bus.implement(Users, Unannotated(), "user")
    get = bus._lookup.handlers["user.get"]
    assert (get.takes, get.returns) == (int, User)


def test_a_method_behind_a_decorator_is_what_it_is_inside() -> None:
    def twice(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return call

    class Decorated(UsersInMemory):
        get = twice(UsersInMemory.get)

    bus = Bus()
    bus.implement(Users, Decorated(), "user")
    assert "2 handlers" in repr(bus)


def test_the_contract_comes_before_its_implementation() -> None:
    with pytest.raises(TypeError, match=r"is not a contract, but Users is: write bus\.implement\(Users, "):
        Bus().implement(UsersInMemory(), Users)  # type: ignore[arg-type,unused-ignore]


def test_marks_that_are_those_of_the_contract_may_be_repeated() -> None:
    class Told(Protocol):
        @notify
        async def touch(self, id: int) -> None: ...

    class ToldInMemory(Told):
        @notify
        async def touch(self, id: int) -> None:
            pass

    Bus().implement(Told, ToldInMemory())


class Rows(Protocol[T]):
    async def put(self, row: T) -> list[T]: ...


class RowsInMemory(Generic[T]):
    async def put(self, row: T) -> list[T]:
        return [row]


class RowsOfText:
    async def put(self, row: str) -> list[str]:
        return [row]


def test_what_a_generic_implementation_leaves_open_is_as_the_contract_says() -> None:
    bus = Bus()
    bus.implement(Rows[User], RowsInMemory[User](), "row")
    put = bus._lookup.handlers["row.put"]
    assert (put.takes, put.returns) == (User, list[User])


def test_a_generic_contract_says_what_to_write_in_the_types_that_it_is_used_with() -> None:
    with pytest.raises(TypeError, match=r"RowsOfText\.put reads 'row' as str, but Rows\.put takes int"):
        Bus().implement(Rows[int], RowsOfText())  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(TypeError, match=r"has no method 'put' of Rows: write `async def put\(self, row: int\)`"):
        Bus().implement(Rows[int], object())  # type: ignore[arg-type,unused-ignore]
