"""Resolves the dependencies of handlers, which are marked with `Depends` from fast-depends or FastAPI.

The attributes ``dependency`` and ``use_cache`` identify both marks without importing the library.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, Final, TypeVar, get_args, get_origin

from attrs import define
from msgspec import Struct

from ..._util.class_shapes import open_variable
from ..._util.pydantic_types import is_own
from ..._util.typed_body import convert_text, misfit, unreadable
from ..._validation import name_of, shown
from ...message import Message
from ...outcomes import Misfit
from ..runtime.context import Context
from ..runtime.injection import Maker, Provider
from .signature import check_takes_by_name, context_part, injected, read_provider, without_name


def check_default(parameter: inspect.Parameter, function: str) -> None:
    """Raise `TypeError` if a default is a pydantic or FastAPI field, because its constraints would not be checked."""
    default = parameter.default
    if hasattr(default, "default_factory") and is_own(default):
        word = type(default).__name__.removesuffix("Info")
        raise TypeError(
            f"{function}: {parameter.name!r} has {word}(...) as its default: put it into the type, as in "
            f"Annotated[int, {word}(gt=0)], followed by the default itself"
        )


def closed_type(hint: Any, what: str, promised: Any = Any) -> Any:
    """Return the type, or the promised type if it has open type variables.

    Raises:
        TypeError: If no type was promised. Every value would then fit without conversion.
    """
    if (variable := open_variable(hint)) is None:
        return hint
    if promised is Any:
        raise TypeError(
            f"{what} does not define {variable}: register the method of an object whose class defines it, as in "
            "`class Users(Rows[User])`, name the type, or write Any; use functools.wraps in decorators to keep the types"
        )
    return promised


def capture_maker(position: int, hint: Any, name: str, function: str) -> Callable[..., Any]:
    """Return a function that converts a token of the subject to an argument.

    Raises `TypeError` if values of the type cannot be written as text.
    """
    hint = closed_type(hint, f"{function}: the type of {name!r}")
    if (problem := unreadable(hint)) is not None:
        raise TypeError(f"{function}: no token of a subject can be read as the type of {name!r}: {problem}")

    def make(context: Callable[[], Context], message: Message, channel: Any) -> Any:
        text = str(message.subject).split(".")[position]
        if hint is Any or hint is str:
            return text
        try:
            return convert_text(text, hint)
        except NameError:  # the type refers to an unknown name, which is not a mistake of the sender
            raise
        except Exception as error:
            raise Misfit(f"{name} in the subject: {misfit(error)[0]}") from error

    return make


T = TypeVar("T")

_EMPTY: Final = inspect.Parameter.empty
_MAKERS: Final = ("fast_depends", "fastapi")
_WEB: Final = ("fastapi", "starlette")
_TWIN: Final = "polybus.sync.BlockingBus"
_WHAT: Final = "Context, Message, Bus, Peer, another Depends, or a name of the pattern"


class AskedDependency(Struct, frozen=True):
    function: Callable[..., Any]
    cached: bool


def asked_for(parameter: inspect.Parameter, hint: Any, of: str) -> AskedDependency | None:
    """Find the dependency of a parameter, in its ``Annotated`` annotation or its default.

    Raises:
        TypeError: If ``Depends`` has no function, or is nested inside another type, where the peer would choose the value.
    """
    metadata: tuple[Any, ...] = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    for found in (*metadata, parameter.default):
        if inspect.isroutine(found) or isinstance(found, type):
            word = found.__name__
            if word in ("Depends", "Security") and str(found.__module__).partition(".")[0] in _MAKERS:
                raise TypeError(f"{of}: {parameter.name!r} has {word} without its function: write {word}(session)")
            continue
        if _is_mark(found):
            function = found.dependency
            if function is None:  # with FastAPI, Depends() means the type itself
                function = get_args(hint)[0] if metadata else hint
            return AskedDependency(function, bool(found.use_cache))
    if _has_mark_within(hint, []):
        raise TypeError(
            f"{of}: {parameter.name!r} has Depends within {shown(hint)}, where the peer would choose its value: write "
            "Annotated[..., Depends(session)] around the whole type, as in Annotated[Session | None, Depends(session)]"
        )
    return None


def _has_mark_within(hint: Any, seen: list[Any]) -> bool:
    if any(hint is one for one in seen):  # a named type that contains itself
        return False
    seen.append(hint)
    try:
        hint = without_name(hint)
    except (NameError, TypeError):  # the name has no value
        return False
    inner = hint if isinstance(hint, list) else get_args(hint)  # a list holds the parameters of a Callable
    marked = get_origin(hint) is Annotated and any(map(_is_mark, inner[1:]))
    return marked or any(_has_mark_within(one, seen) for one in inner)


def _is_mark(found: Any) -> bool:
    return not isinstance(found, type) and hasattr(found, "use_cache") and hasattr(found, "dependency")


def provider_of(
    asked: AskedDependency,
    handler: str,
    positions: Mapping[str, int],
    names: set[str],
    within: tuple[Callable[..., Any], ...] = (),
) -> Provider:
    """Resolve a dependency and its own dependencies. `within` is the chain of functions, starting at the handler.

    Args:
        handler: Name of the handler or other function with the dependency, for error texts.
        positions: Names in the pattern, with their positions in the subject.
        names: Set that receives the used names.

    Raises:
        TypeError: If the dependency depends on itself, or on a value that is not available in calls. The text names the
            dependency and the handler.
    """
    function = asked.function
    name = f"{handler}: {name_of(function)}, which it depends on,"
    if not callable(function):
        raise TypeError(f"{handler}: Depends({function!r:.100}) must have a function")
    if type(function).__hash__ is None:  # the cache of a call needs a hash
        raise TypeError(
            f"{name} is not hashable, because its class defines __eq__: use @define(eq=False), @frozen or a __hash__"
        )
    if function in within:
        raise TypeError(f"{name} depends on itself, through {' and '.join(name_of(one) for one in within)}")
    if str(getattr(function, "__module__", "")).startswith("polybus.fastapi"):
        raise TypeError(f"{handler}: BusDep is for endpoints: annotate with polybus.Bus, in a def handler with {_TWIN}")
    parameters, hints, style = read_provider(function, name)
    in_thread = not style.startswith("async") and sys.platform != "emscripten"
    provider = Provider(function, name_of(function), style, in_thread, cached=asked.cached)
    for parameter in parameters:
        hint = hints.get(parameter.name, Any)
        if (wanted := asked_for(parameter, hint, f"{handler}: {name_of(function)}")) is not None:
            needed = provider_of(wanted, handler, positions, names, (*within, function))
            provider.needs.append((parameter.name, needed))
        elif (make := _maker(provider, parameter, hint, positions, name)) is not None:
            names.add(parameter.name)
            provider.makers.append((parameter.name, make))
    check_takes_by_name(function, [given for given, _ in (*provider.needs, *provider.makers)], name)
    return provider


def _maker(
    provider: Provider, parameter: inspect.Parameter, hint: Any, positions: Mapping[str, int], name: str
) -> Maker | None:
    given = injected(hint)
    if given is not None and (make := context_maker(given, parameter.name, name, in_thread=provider.in_thread)) is not None:
        return make
    if parameter.name in positions:
        check_default(parameter, name)
        return capture_maker(positions[parameter.name], hint, parameter.name, name)
    if (of_web := of_the_web(parameter, hint)) is not None:
        raise TypeError(
            f"{name} needs {of_web} as {parameter.name!r}, but a bus call has no HTTP request: use {_WHAT}, or give the "
            "handler another function"
        )
    if parameter.default is _EMPTY:
        raise TypeError(f"{name} needs {parameter.name!r}, which no call can provide: use {_WHAT}, or give it a default")
    return None


def context_maker(given: Any, parameter: str, name: str, *, in_thread: bool) -> Maker | None:
    """Return the provider of a `Context`, a part of it, or a `Message`, or None for other types.

    Raises `TypeError` if the type is for handlers in the other kind of thread.
    """
    if isinstance(given, type) and issubclass(given, Context):
        if given is not Context and not in_thread:
            raise TypeError(f"{name} runs on the event loop: annotate {parameter!r} with polybus.Context")
        return lambda context, message, channel: context()
    if given is Message:
        return lambda context, message, channel: message
    if (part := context_part(given)) is None:
        return None
    if part.in_thread is not in_thread:
        wanted = f"polybus.sync.Blocking{part.title}" if in_thread else f"polybus.{part.title}"
        raise TypeError(
            f"{name} runs {'in a thread' if in_thread else 'on the event loop'}: annotate {parameter!r} with {wanted}"
        )
    return lambda context, message, channel: getattr(context(), part.name)


def of_the_web(parameter: inspect.Parameter, hint: Any) -> str | None:
    """Return the name of a FastAPI or Starlette class that requires an HTTP request, such as ``Header()``."""
    metadata = get_args(hint)[1:] if get_origin(hint) is Annotated else ()
    kind = get_args(hint)[0] if metadata else hint
    for found in (kind, *(type(one) for one in (*metadata, parameter.default))):
        if isinstance(found, type) and str(found.__module__).partition(".")[0] in _WEB:
            return found.__name__
    return None


def provider_finder(
    find: Callable[[Callable[..., Any]], Callable[..., Any] | None], where: str
) -> Callable[[Callable[..., Any]], Provider | None]:
    """Return a function that looks up replacements. `where` names the origin of the replacements in error texts."""

    def found(original: Callable[..., Any]) -> Provider | None:
        replacement = find(original)
        if replacement is None:
            return None
        return provider_of(AskedDependency(replacement, cached=True), where, {}, set(), (original,))

    return found


@define(eq=False, repr=False)
class Dependencies:
    """The dependencies of a bus's handlers. Returned by `Bus.dependencies`."""

    _overrides: dict[Callable[..., Any], Provider]

    @contextmanager
    def override(self, original: Callable[..., Any], replacement: Callable[..., Any]) -> Iterator[None]:
        """Replace a dependency of handlers in tests: ``with bus.dependencies.override(f, fake): ...``

        Only calls that begin within the block are affected. The replacement can have its own dependencies and clean-up, but no
        parameters for the names in patterns.

        Raises:
            TypeError: If one of the arguments is not callable, or the replacement requires a value that is not available.
        """
        for name, function in (("original", original), ("replacement", replacement)):
            if not callable(function):
                raise TypeError(f"override({name}={shown(function)}): pass functions, as in override(session, fake_session)")
        provider = provider_of(AskedDependency(replacement, cached=True), "override()", {}, set(), (original,))
        before = self._overrides.get(original)
        self._overrides[original] = provider
        try:
            yield
        finally:
            if before is None:
                self._overrides.pop(original, None)
            else:
                self._overrides[original] = before
