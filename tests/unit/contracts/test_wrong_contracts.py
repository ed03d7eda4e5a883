"""Contracts and implementations that cannot be: they say which class and method, and what to write instead."""

import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Sized
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar, overload

import pytest
from attrs import frozen

from polybus import Bus, Channel, Context, Reply, method, notify

if TYPE_CHECKING:
    from decimal import Decimal

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@frozen
class User:
    id: int


class NoProtocol:
    async def get(self, id: int) -> User: ...  # type: ignore[empty-body]


class Empty(Protocol):
    pass


class TwoBodies(Protocol):
    async def rename(self, id: int, name: str) -> User: ...


class Stars(Protocol):
    async def get(self, *ids: int) -> User: ...


class Named(Protocol):
    async def get(self, **names: int) -> User: ...


class NoSelf(Protocol):
    async def get() -> User: ...  # type: ignore[misc]


class Untyped(Protocol):
    async def get(self, id) -> User: ...  # type: ignore[no-untyped-def]


class NoResult(Protocol):
    async def get(self, id: int): ...  # type: ignore[no-untyped-def]


class Unresolved(Protocol):
    async def get(self, price: "Decimal") -> User: ...


class UnresolvedResult(Protocol):
    async def get(self, id: int) -> "Decimal": ...


class AsyncStream(Protocol):
    async def watch(self, id: int) -> AsyncIterator[User]: ...


class PlainStream(Protocol):
    async def get(self, id: int) -> User: ...
    def watch(self, id: int) -> Iterator[User]: ...


class Mixed(Protocol):
    async def get(self, id: int) -> User: ...
    def count(self) -> int: ...


class Promising(Protocol):
    async def get(self, id: int) -> User: ...
    def count(self) -> Awaitable[int]: ...


class NotifiesWithAnswer(Protocol):
    @notify
    async def touch(self, id: int) -> User: ...


class NotifiesInTime(Protocol):
    @method(timeout=3)
    @notify
    async def touch(self, id: int) -> None: ...


class WithContext(Protocol):
    async def get(self, ctx: Context) -> User: ...


class WithChannel(Protocol):
    async def talk(self, channel: Channel[int, int]) -> None: ...


class Attribute(Protocol):
    name: str

    async def get(self, id: int) -> User: ...


class Constant(Protocol):
    limit: ClassVar[int] = 3

    async def get(self, id: int) -> User: ...


class Property(Protocol):
    @property
    def name(self) -> str: ...


class Static(Protocol):
    @staticmethod
    async def get(id: int) -> User: ...


class OfClass(Protocol):
    @classmethod
    async def get(cls, id: int) -> User: ...


class Overloaded(Protocol):
    @overload
    async def get(self, id: int) -> User: ...
    @overload
    async def get(self, id: str) -> User: ...


class Private(Protocol):
    async def _get(self, id: int) -> User: ...


class Uncarried(Protocol):
    async def get(self, call: Callable[[], int]) -> User: ...


class UncarriedResult(Protocol):
    async def get(self, id: int) -> Generator[int, None, None] | object: ...


class Open(Protocol[T_co]):
    async def get(self, id: int) -> T_co: ...


class OpenInside(Protocol[T]):
    async def put(self, users: "list[T]") -> None: ...


class SameSubject(Protocol):
    async def get(self, id: int) -> User: ...
    @method("get")
    async def find(self, id: int) -> User: ...


class NoSubject(Protocol):
    @method("get one.")
    async def get(self, id: int) -> User: ...


class Wildcard(Protocol):
    @method("*")
    async def get(self, id: int) -> User: ...


class Number(Protocol):
    @method(0x10001)
    async def get(self, id: int) -> User: ...


class Called(Protocol):
    async def get(self, id: int) -> User: ...
    async def __call__(self, id: int) -> User: ...


class Entered(Protocol):
    async def __aenter__(self) -> User: ...


class ForgottenSelf(Protocol):
    async def get(id: int) -> User: ...  # type: ignore[misc]


class YieldsOne(Protocol):
    async def get(self, id: int) -> User: ...
    async def watch(self, id: int) -> User:  # type: ignore[misc]
        yield User(id)


class UnresolvedItems(Protocol):
    def watch(self, id: int) -> AsyncIterator["Decimal"]: ...


class UnresolvedStream(Protocol):
    def watch(self, id: int) -> "AsyncIterator[Decimal]": ...


class NotifiesManyTimes(Protocol):
    @notify
    def touch(self, id: int) -> AsyncIterator[User]: ...


class ListInstance(Protocol):
    async def get(self, ids: [int]) -> User: ...  # type: ignore[misc,valid-type]


class Cached(Protocol):
    @functools.cached_property
    def name(self) -> str: ...


class WithClass(Protocol):
    async def get(self, id: int) -> User: ...

    class Query:
        pass


class OnlyPromise(Protocol):
    def count(self) -> Reply[int]: ...


class ReturnsItself(Protocol):
    async def get(self, id: int) -> Self: ...


class BadText(Protocol):
    async def get(self, id: Any) -> User: ...


BadText.get.__annotations__["id"] = "list["


class DerivedFromOne(Empty):
    async def get(self, id: int) -> User: ...  # type: ignore[empty-body]


WRONG: list[tuple[Any, str]] = [
    (NoProtocol, r"NoProtocol'> is no contract: a Protocol class is, as in `class Users\(Protocol\).*; derive NoProtocol from"),
    (7, "7 is no contract: a Protocol class"),
    ({}, r"\{\} is no contract"),
    (None, r"None is no contract"),
    (Sized, r"Sized'> is no contract"),
    (DerivedFromOne, r"DerivedFromOne'> is no contract: .*; derive DerivedFromOne from typing\.Protocol itself"),
    ("Users", "'Users' is no contract"),
    (list[int], r"list\[int\] is no contract"),
    (Empty, "Empty has no methods: write `async def get"),
    (
        TwoBodies,
        r"TwoBodies\.rename takes 'id' and 'name', and a message has one body: put them into one class .*query: Rename\)",
    ),
    (Stars, r"Stars\.get takes '\*ids: int', and a message has one body: write one parameter"),
    (Named, r"Named\.get takes '\*\*names: int'"),
    (NoSelf, r"NoSelf\.get has no self: write it as the first parameter"),
    (Untyped, r"Untyped\.get says no type of 'id': write `id: GetUser`, or Any"),
    (NoResult, r"NoResult\.get says not what it returns: write `-> User`, or `-> None`"),
    (Unresolved, r"Unresolved\.get: the annotation of parameter 'price' does not resolve, 'Decimal' is not known"),
    (
        UnresolvedResult,
        r"UnresolvedResult\.get returns Decimal, which does not resolve: import it outside of `if TYPE_CHECKING:`",
    ),
    (
        AsyncStream,
        r"AsyncStream\.watch is `async def` and returns .*: a stream is written `def watch\(self, ...\) -> AsyncIterator",
    ),
    (PlainStream, r"PlainStream\.watch returns .*Iterator\[.*, which blocks: a stream is written `def watch"),
    (
        Mixed,
        r"Mixed\.count is a plain `def` among others that are async: write `async def count\(self, \.\.\.\)`; a stream is "
        r"written `def count\(self, \.\.\.\) -> AsyncIterator\[T\]`; a contract for threads",
    ),
    (YieldsOne, r"YieldsOne\.watch yields and returns User: a stream is written `def watch\(self, \.\.\.\) -> AsyncIterator"),
    (UnresolvedItems, r"UnresolvedItems\.watch returns .*AsyncIterator\[.*Decimal.*\], which does not resolve: import it"),
    (UnresolvedStream, r"UnresolvedStream\.watch returns AsyncIterator\[Decimal\], which does not resolve: import it"),
    (NotifiesManyTimes, r"NotifiesManyTimes\.touch is a notification and returns .*AsyncIterator.*: it has no answer"),
    (OnlyPromise, r"OnlyPromise\.count returns polybus\.Reply\[int\]: write `async def count\(self, \.\.\.\) -> T`"),
    (ReturnsItself, r"ReturnsItself\.get cannot be carried, what it returns is .*Self"),
    (ListInstance, r"ListInstance\.get cannot be carried, the type of 'ids' is .*: it is no type, write list\[int\]"),
    (BadText, r"BadText\.get: an annotation does not resolve: .*list\["),
    (ForgottenSelf, r"ForgottenSelf\.get has no self: write it as the first parameter, before 'id'"),
    (Called, r"Called\.__call__ is a name of Python's own, which a client does not have: give it another name"),
    (Entered, r"Entered\.__aenter__ is a name of Python's own"),
    (Cached, r"Cached\.name is no method but a cached_property"),
    (WithClass, r"WithClass\.Query is no method but a type: a contract has methods alone"),
    (Promising, r"Promising\.count returns .*Awaitable\[int\]: write `async def count"),
    (NotifiesWithAnswer, r"NotifiesWithAnswer\.touch is a notification and returns User: it has no answer, write `-> None`"),
    (NotifiesInTime, r"NotifiesInTime\.touch is a notification, for whose answer nobody waits: leave out timeout="),
    (WithContext, r"WithContext\.get takes 'ctx', Context, which handlers are given and callers do not have: leave it out"),
    (WithChannel, r"WithChannel\.talk takes 'channel', .*a channel is opened by bus\.channel\(\)"),
    (Attribute, r"Attribute\.name is an attribute, which no wire has: write `async def name\(self\)"),
    (Constant, r"Constant\.limit is an attribute"),
    (Property, r"Property\.name is a property: a contract has methods alone"),
    (Static, r"Static\.get is a staticmethod"),
    (OfClass, r"OfClass\.get is a classmethod"),
    (Overloaded, r"Overloaded\.get is overloaded, and a subject takes one type: write a union, or two methods"),
    (Private, r"Private\._get is private: a method of a contract is public"),
    (Uncarried, r"Uncarried\.get cannot be carried, the type of 'call' is .*Callable"),
    (UncarriedResult, r"UncarriedResult\.get cannot be carried, what it returns is .*Generator"),
    (Open, r"Open\.get leaves open what .*T_co stands for: name it where the contract is used, as in Open\[User\]"),
    (Open["User"], r"Open\.get cannot be carried, what it returns is .*'User'.*: the class itself, without quotes"),
    (OpenInside, r"OpenInside\.put leaves open what .*T"),
    (SameSubject, r"SameSubject\.find and SameSubject\.get have the same subject 'user\.get': rename one"),
    (NoSubject, r"NoSubject\.get would have the subject 'user\.get one\.', which cannot be: .*empty token"),
    (Wildcard, r"Wildcard\.get would have the subject 'user\.\*', which cannot be: .*pattern"),
    (
        Number,
        r"Number\.get has the subject 65537 of its own, before which the prefix 'user' cannot stand: leave out the prefix",
    ),
]


@pytest.mark.parametrize(
    ("contract", "says"), WRONG, ids=[str(getattr(contract, "__name__", contract)) for contract, _ in WRONG]
)
def test_a_wrong_contract_is_an_error_at_once_that_says_what_to_write(contract: Any, says: str) -> None:
    bus = Bus()
    with pytest.raises(TypeError, match=f"(?s){says}"):
        bus.client(contract, "user")
    with pytest.raises(TypeError, match=f"(?s){says}"):
        bus.implement(contract, object(), "user")


def test_a_prefix_is_a_text_that_makes_subjects() -> None:
    bus: Any = Bus()
    with pytest.raises(TypeError, match="the prefix 7 of Users: a text, for example 'user', not int"):
        bus.client(Users, 7)
    with pytest.raises(TypeError, match=r"the prefix 'user\.' of Users: the dot comes by itself, write 'user'"):
        bus.client(Users, "user.")
    with pytest.raises(
        TypeError, match=r"the prefix '//vehicle/users/1/' of Users: the slash comes by itself, write '//vehicle"
    ):
        bus.client(Users, "//vehicle/users/1/")
    with pytest.raises(TypeError, match=r"Users\.get would have the subject '_polybus\.get', .*belong to polybus"):
        bus.client(Users, "_polybus")


def test_a_number_and_a_uri_are_whole_subjects() -> None:
    class Door(Protocol):
        @method("/body.access/1/rpc.open")
        async def open(self) -> None: ...

    class DoorAlone:
        async def open(self) -> None: ...

    bus = Bus()
    bus.implement(Door, DoorAlone())
    bus.client(Number)
    assert "/body.access/1/rpc.open" in repr(bus._lookup.handlers)


def test_a_prefix_that_is_a_uri_goes_on_with_a_slash() -> None:
    bus = Bus()
    bus.implement(Users, UsersInMemory(), "//vehicle/users/1")
    with pytest.raises(TypeError, match="'//vehicle/users/1/get' is already handled by UsersInMemory.get"):
        bus.handle("//vehicle/users/1/get")(lambda: None)


# -- decorators -----------------------------------------------------------------------------------------------------------


def test_a_decorator_without_its_parentheses_says_so() -> None:
    with pytest.raises(TypeError, match=r"write @method\(\) with its parentheses"):

        class Users(Protocol):
            @method  # type: ignore[arg-type]
            async def get(self, id: int) -> User: ...  # type: ignore[misc]


def test_a_decorator_stands_above_a_function() -> None:
    with pytest.raises(TypeError, match=r"@notify stands directly above the `def` of a method, not above <staticmethod"):
        notify(staticmethod(print))
    with pytest.raises(TypeError, match=r"@method\(\.\.\.\) stands directly above the `def`"):
        method("get")(print)


def test_a_method_is_marked_once() -> None:
    with pytest.raises(TypeError, match=r"get has @method\(\.\.\.\) twice: write name and timeout into one"):

        class Twice(Protocol):
            @method("one")
            @method(timeout=3)
            async def get(self, id: int) -> User: ...

    with pytest.raises(TypeError, match=r"touch has @notify twice: leave one out"):

        class Told(Protocol):
            @notify
            @notify
            async def touch(self, id: int) -> None: ...


@pytest.mark.parametrize("name", [1.5, True, b"get"])
def test_a_name_is_text_or_a_number(name: Any) -> None:
    with pytest.raises(TypeError, match=r"a name, for example @method\('get.one', timeout=5\)"):
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


class NoFunction(UsersInMemory):
    get = 7  # type: ignore[assignment]


class PlainGet(UsersInMemory):
    def get(self, id: int) -> User:  # type: ignore[override]
        return User(id)


class NoStream(UsersInMemory):
    async def watch(self, id: int) -> User:  # type: ignore[override]
        return User(id)


class StreamingGet(UsersInMemory):
    async def get(self, id: int) -> AsyncIterator[User]:  # type: ignore[override]
        yield User(id)


class Talking(UsersInMemory):
    async def get(self, channel: Channel[int, User]) -> None:  # type: ignore[override]
        pass


class OtherBody(UsersInMemory):
    async def get(self, id: str) -> User:  # type: ignore[override]
        return User(int(id))


class OtherResult(UsersInMemory):
    async def get(self, id: int) -> int:  # type: ignore[override]
        return id


class OtherItems(UsersInMemory):
    async def watch(self, id: int) -> AsyncIterator[int]:  # type: ignore[override]
        yield id


class NoBody(UsersInMemory):
    async def get(self) -> User:  # type: ignore[override]
        return User(7)


class MoreBodies(UsersInMemory):
    async def get(self, id: int, name: str = "") -> User:
        return User(id)


class NeedsMore(UsersInMemory):
    async def get(self, id: int, name: str) -> User:  # type: ignore[override]
        return User(id)


class StarredGet(UsersInMemory):
    async def get(self, *ids: int) -> User:
        return User(7)


class GeneratingGet(UsersInMemory):
    def get(self, id: int) -> Iterator[User]:  # type: ignore[override]
        yield User(id)


class GeneratingWatch(UsersInMemory):
    def watch(self, id: int) -> Iterator[User]:  # type: ignore[override]
        yield User(id)


class PropertyGet(UsersInMemory):
    @property
    def get(self) -> User:  # type: ignore[override]
        return User(7)


class MarkedGet(UsersInMemory):
    @method("get.one")
    async def get(self, id: int) -> User:
        return User(id)


class NoSelfGet(UsersInMemory):
    async def get(id: int) -> User:  # type: ignore[misc,override]
        return User(7)


class NothingGet(UsersInMemory):
    async def get() -> User:  # type: ignore[misc,override]
        return User(7)


class OptionalResult(UsersInMemory):
    async def get(self, id: int) -> User | None:  # type: ignore[override]
        return None


class LambdaGet(UsersInMemory):
    get = lambda self, id: User(id)  # type: ignore[assignment,return-value]  # noqa: E731


class UnresolvedBody(UsersInMemory):
    async def get(self, id: "Decimal") -> User:  # type: ignore[override]
        return User(7)


UNFIT: list[tuple[Any, str]] = [
    (
        NeedsMore(),
        r"NeedsMore\.get: both 'id' and 'name' could be .*; write `async def get\(self, id: int\)`, for Users\.get",
    ),
    (StarredGet(), r"StarredGet\.get: \*ids cannot be filled .*; write `async def get\(self, id: int\)`, for Users\.get"),
    (GeneratingGet(), r"GeneratingGet\.get is a plain generator.*; write `async def get\(self, id: int\)`, for Users\.get"),
    (
        GeneratingWatch(),
        r"GeneratingWatch\.watch is a plain generator.*; write `async def watch\(self, id: int\)` with `yield`, for",
    ),
    (PropertyGet(), r"PropertyGet\.get is .*User\(id=7\), and Users\.get is a method: write `async def get"),
    (MarkedGet(), r"MarkedGet\.get has a @method or @notify of its own, .* Users\.get counts: move it there"),
    (NoSelfGet(), r"NoSelfGet\.get takes no body, and Users\.get takes 'id'"),
    (NothingGet(), r"NothingGet\.get shows no signature.*; write `async def get\(self, id: int\)`"),
    (OptionalResult(), r"OptionalResult\.get returns .*User \| None, and Users\.get returns User"),
    (LambdaGet(), r"LambdaGet\.<lambda> is a plain `def`, and Users\.get is async"),
    (UnresolvedBody(), r"UnresolvedBody\.get: the annotation of parameter 'id' does not resolve, 'Decimal' is not known"),
    (None, r"None implements nothing: an object with the methods of Users does"),
    (Users, r"Users is a class, and its objects answer"),
    (UsersInMemory, r"UsersInMemory is a class, and its objects answer: bus\.implement\(Users, UsersInMemory\(\), \.\.\.\)"),
    (Incomplete(), r"Incomplete has no method 'watch', as Users has: write `async def watch\(self, id: int\)` with `yield`"),
    (Inherited(), r"Inherited\.watch is inherited from the contract, where it does nothing: write `async def watch"),  # type: ignore[abstract]
    (NoFunction(), r"NoFunction\.get is 7, and Users\.get is a method: write `async def get\(self, id: int\)`"),
    (PlainGet(), r"PlainGet\.get is a plain `def`, and Users\.get is async: write `async def get"),
    (NoStream(), r"NoStream\.watch gives one answer, and Users\.watch is a stream: write `async def watch.* with `yield`"),
    (StreamingGet(), r"StreamingGet\.get is a stream, and Users\.get gives one answer"),
    (Talking(), r"Talking\.get takes a Channel, and Users\.get has none"),
    (OtherBody(), r"OtherBody\.get reads 'id' as str, and Users\.get takes int: annotate it so, or change Users\.get"),
    (OtherResult(), r"OtherResult\.get returns int, and Users\.get returns User"),
    (OtherItems(), r"OtherItems\.watch returns int, and Users\.watch returns User"),
    (NoBody(), r"NoBody\.get takes no body, and Users\.get takes 'id'"),
    (MoreBodies(), r"MoreBodies\.get: both 'id' and 'name' could be the body"),
]


@pytest.mark.parametrize(("implementation", "says"), UNFIT, ids=[says.split()[0].replace("\\", "") for _, says in UNFIT])
def test_an_implementation_that_does_not_fit_is_an_error_and_nothing_is_registered(implementation: Any, says: str) -> None:
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

    with pytest.raises(TypeError, match=r"greet: 'name' has no default, as it has in Greets\.greet"):
        Bus().implement(Greets, Demands())  # type: ignore[arg-type,unused-ignore]


def test_a_body_that_no_caller_sends_needs_a_default() -> None:
    class Counts(Protocol):
        async def count(self) -> int: ...

    class CountsSome:
        async def count(self, most: int) -> int:
            return most

    with pytest.raises(TypeError, match=r"takes 'most', and Counts\.count takes nothing: leave it out, or give it a default"):
        Bus().implement(Counts, CountsSome())  # type: ignore[arg-type,unused-ignore]


def test_a_subject_that_is_handled_already_leaves_the_others_alone() -> None:
    bus = Bus()
    bus.handle("user.watch")(lambda: None)
    with pytest.raises(TypeError, match=r"UsersInMemory\.watch: 'user\.watch' is already handled by"):
        bus.implement(Users, UsersInMemory(), "user")
    assert "1 handler," not in repr(bus)
    assert repr(bus).endswith("1 handler>")


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
    with pytest.raises(TypeError, match=r"is no contract: Users is one, and comes first: bus\.implement\(Users, "):
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


class ListsOfText(Rows[str]):
    async def put(self, row: str) -> list[int]:  # type: ignore[override]
        return [1]


def test_what_a_generic_implementation_leaves_open_is_as_the_contract_says() -> None:
    bus = Bus()
    bus.implement(Rows[User], RowsInMemory[User](), "row")
    put = bus._lookup.handlers["row.put"]
    assert (put.takes, put.returns) == (User, list[User])


def test_a_generic_contract_says_what_to_write_in_the_types_that_it_is_used_with() -> None:
    with pytest.raises(TypeError, match=r"RowsOfText\.put reads 'row' as str, and Rows\.put takes int"):
        Bus().implement(Rows[int], RowsOfText())  # type: ignore[arg-type,unused-ignore]
    with pytest.raises(TypeError, match=r"has no method 'put', as Rows has: write `async def put\(self, row: int\)`"):
        Bus().implement(Rows[int], object())  # type: ignore[arg-type,unused-ignore]


def test_items_of_containers_are_compared_too() -> None:
    with pytest.raises(TypeError, match=r"ListsOfText\.put returns list\[int\], and Rows\.put returns list\[str\]"):
        Bus().implement(Rows[str], ListsOfText())


def test_a_plain_generator_for_a_stream_of_threads_is_told_where_streams_are_answered() -> None:
    class Watched(Protocol):
        def watch(self, id: int) -> Iterator[int]: ...

    class Generates(Watched):
        def watch(self, id: int) -> Iterator[int]:
            yield id

    says = r"Generates\.watch is a plain generator: .*; write `async def watch\(self, id: int\)` with `yield`, for Watched"
    with pytest.raises(TypeError, match=says):
        Bus().implement(Watched, Generates())
