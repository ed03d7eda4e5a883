"""Writes the verbs of the blocking twin, `polybus.sync`, from those of `Bus`, `Peer` and `Listener`.

``python scripts/make_blocking.py`` writes the module, ``--check`` only compares it with what it would write. A verb keeps its
parameters, overloads and docstring; what it returns decides how it blocks.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polybus

PACKAGE = Path(polybus.__file__).parent
WIDTH = 120
Function = ast.FunctionDef | ast.AsyncFunctionDef

# -- which verbs, and what stands around them -----------------------------------------------------------------------------

# Registering handlers does not block: that is done on the `Bus`.
BUS_VERBS = """
request as_ notify publish publish_nowait subscribe stream channel connect serve record tunnel peers peers_of user nodes present
stats events drain wait_closed
"""
PEER_VERBS = """
id identity identity_key address protocol transport connected_at request publish subscribe notify stream channel tunnel aclose
"""
REMOTE_PEER_VERBS = "id node identity_key protocol request notify publish stream channel"
CALLER_VERBS = "identity request notify stream channel"
USER_VERBS = "key request notify publish stream channel online peers"
LISTENER_VERBS = "url peers"
RENAMED = {"aclose": "close"}

BUS = '''
class BlockingBus:
    """A `Bus` whose verbs block the calling thread. Safe to use from several threads at once.

    A request gives its answer, not a `Reply`: for several at a time use several threads.
    """

    __context_part__: ClassVar[ContextPart]

    def __init__(self, bus: Bus, run: Run) -> None:
        self._bus = bus
        self._runs = run

    @property
    def _run(self) -> Run:
        return self._runs

    def __reduce__(self) -> Any:
        raise TypeError("a bus cannot be pickled, it lives in one process: open one in the function that runs in the other")
'''

PEER = '''
AnyPeer: TypeAlias = "Peer | RemotePeer | BlockingPeer | BlockingRemotePeer"
Recipient: TypeAlias = "AnyPeer | None"
Texts: TypeAlias = "Mapping[str, str] | None"
"""Text to text: headers, or the parameters of a tunnel."""


def asynchronous(to: Any) -> Any:
    """The peers that the asynchronous verbs know; an address is one already."""
    if isinstance(to, BlockingPeer):
        return to._peer
    if isinstance(to, BlockingRemotePeer):
        return to._remote_peer
    return [asynchronous(peer) for peer in to] if isinstance(to, Iterable) and not isinstance(to, str) else to


class BlockingPeer:
    """A `Peer` whose verbs block the calling thread."""

    __context_part__: ClassVar[ContextPart]

    def __init__(self, peer: Peer, run: Run) -> None:
        self._peer = peer
        self._run = run

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BlockingPeer) and self._peer is other._peer

    def __hash__(self) -> int:
        return hash(self._peer)

    def __repr__(self) -> str:
        return repr(self._peer)
'''

REMOTE_PEER = '''
def surveyed(run: Run, asked: Callable[[], Awaitable[Survey[Any]]]) -> Survey[Any]:
    """The answers of the nodes of a cluster, with peers whose verbs block."""
    twins: dict[type, Any] = {Peer: BlockingPeer, RemotePeer: BlockingRemotePeer}
    given: Survey[Any] = run(asked)
    return Survey(tuple(twins[type(one)](one, run) if type(one) in twins else one for one in given), given.complete)


class BlockingRemotePeer:
    """A `RemotePeer` whose verbs block the calling thread."""

    def __init__(self, remote_peer: RemotePeer, run: Run) -> None:
        self._remote_peer = remote_peer
        self._run = run

    def __repr__(self) -> str:
        return repr(self._remote_peer)
'''

USER = '''
class BlockingUser:
    """A `User` whose verbs block the calling thread."""

    def __init__(self, user: User, run: Run) -> None:
        self._user = user
        self._run = run

    def __repr__(self) -> str:
        return repr(self._user)
'''

CALLER = '''
class BlockingCaller:
    """A `Caller` whose verbs block the calling thread."""

    def __init__(self, caller: Caller, run: Run) -> None:
        self._caller = caller
        self._run = run

    def __repr__(self) -> str:
        return repr(self._caller)
'''

CLIENT = '''
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Make an object with the methods of a Protocol class, plain ones, each of which waits for its answer.

        ``users = bus.client(Users, "user")``, and ``users.get(GetUser(7))`` asks for ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods of one body, which for streams return ``Iterator[T]``. One with
                ``async def`` methods is for `Bus.client`: it would say to type checkers that its answers are to be awaited.
            prefix: Subjects are this, a dot, and the name of the method.

        Raises:
            TypeError: It is no contract, or makes no subjects; the text names class and method, and what to write.
        """
        return blocking_client_of(self, contract, prefix)
'''

LISTENER = '''
class BlockingListener:
    """A `Listener`, seen from a thread."""

    def __init__(self, listener: Listener, run: Run) -> None:
        self._listener = listener
        self._run = run
'''

MODULE = '''\
"""The verbs of a bus, a peer and a listener for threads, made by ``python scripts/make_blocking.py`` from the originals."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, TypeVar, overload

from .._core.bus.cluster import Survey
from .._core.bus.remote_peer import RemotePeer
from .._core.handlers.signature import ContextPart
from .._core.peer.peer import Peer
from ..contracts.client import blocking_client_of

from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run, awaited, called
{imports}

if TYPE_CHECKING:
    from typing_extensions import TypeForm
    {typing}

__all__ = ["BlockingBus", "BlockingCaller", "BlockingListener", "BlockingPeer", "BlockingRemotePeer", "BlockingUser"]

In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")
T = TypeVar("T")
'''

# -- how a verb blocks -------------------------------------------------------------------------------------------------------

RETURNS = {
    "AbstractAsyncContextManager": ("BlockingBlock[{0}]", "BlockingBlock(self._run, {call}, lambda made: {made})"),
    "AsyncIterator": ("BlockingItems[{0}]", "BlockingItems(self._run(called, lambda: {call}), self._run)"),
    "ChannelContext": ("BlockingChannel[{0}]", "BlockingChannel({call}, self._run)"),
    "Reply": ("{0}", "self._run(awaited, lambda: {call})"),
    "Subscription": ("BlockingSubscription[{0}]", "BlockingSubscription({call}, self._run)"),
    "Connector": ("BlockingTunnel", "BlockingTunnel({call}, self._run)"),
    "Survey": ("Survey[{0}]", "surveyed(self._run, lambda: {call})"),
    "Caller": ("BlockingCaller", "BlockingCaller({call}, self._run)"),
    "User": ("BlockingUser", "BlockingUser({call}, self._run)"),
    "bool": ("bool", "bool(self._run(lambda: {call}))"),
    "list": ("list[{0}]", "[{made} for made in self._run(called, lambda: {call})]"),
}
"""What the twin gives in place of what the verb gives: the annotation, and how it comes about."""

ALIASES = (
    (r"\b(Any)?Peer \| None", "Recipient"),
    (r"\bPeer\b", "AnyPeer"),
    (r"Mapping\[str, str\] \| None", "Texts"),
    (r"str \| int \| Subject\[Any, Any\]", "AnySubject"),
)
"""Short names for annotations that come again and again."""

TWINS = {
    "Peer": "BlockingPeer",
    "Listener": "BlockingListener",
    "Peer | RemotePeer": "BlockingPeer | BlockingRemotePeer",
}

# -- what a docstring says to threads ----------------------------------------------------------------------------------------

SUMMARIES = {
    "request": "Ask, and wait for the answer. Ctrl-C cancels the request, at the other side too where the wire can say it.",
}
WORDS = (
    (r"\(by awaiting\) ", ""),
    (r"\basync (with|for|context manager)\b", r"\1"),
    (r"\bawait ", ""),
    (r"``connect\(", "``sync.connect("),
    (r"`(Bus\.(?!handle)|Peer`|Peer\.|RemotePeer`|Listener`)", r"`Blocking\1"),
    (r"(he bus) runs in another event loop", r"\1 does not run, or this thread runs its event loop"),
    (r"or runs in another event loop", "or this thread runs its event loop"),
)


class Source:
    """A module as it is written: its classes, and where its names come from."""

    def __init__(self, path: Path) -> None:
        module = ast.parse(path.read_text())
        package = path.relative_to(PACKAGE).parts[:-1]
        here = ".." + ".".join((*package, path.stem)).removesuffix(".__init__")
        self.classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
        self.constants: dict[str, str] = {}
        self._imports = {name: f"from {here} import {name}" for name in self.classes}
        for node in ast.walk(module):
            if isinstance(node, ast.Import):
                self._imports |= {alias.name: f"import {alias.name}" for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                above = [".", *package[: len(package) + 1 - node.level]] if node.level else []
                place = ".".join((*above, node.module or ""))
                self._imports |= {alias.name: f"from {place} import {alias.name}" for alias in node.names}
        for node in module.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                target = ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0])
                if isinstance(node.value, ast.Constant):
                    self.constants[target] = ast.unparse(node.value)
                elif "TypeVar(" not in ast.unparse(node.value):
                    self._imports[target] = f"from {here} import {target}"

    def imported(self, *nodes: ast.AST) -> set[str]:
        """The imports of what is named there."""
        names = {node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name)}
        return {self._imports[name] for name in names & set(self._imports)}


@functools.cache
def source_of(cls: type) -> Source:
    """Not by `inspect.getsource`: public classes say that they are of `polybus`."""
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            return Source(Path(inspect.unwrap(function).__code__.co_filename))
    raise LookupError(f"{cls.__name__} has no methods")


class Twin:
    """The members of one class, as text, from those of its original."""

    def __init__(self, original: type, verbs: str) -> None:
        self._original = original
        self._inner = "self._" + re.sub(r"(?<!^)(?=[A-Z])", "_", original.__name__).lower()
        self.typing: set[str] = source_of(original).imported(ast.Name(original.__name__))
        """Imports that only type checkers need."""
        self.imports: set[str] = set()
        """Imports for the defaults of parameters."""
        self.text = "\n".join(line for name in verbs.split() for line in ("", *self._member(name)))

    def _member(self, name: str) -> Iterator[str]:
        for cls in self._original.__mro__[:-1]:
            source = source_of(cls)
            tree = source.classes[cls.__name__]
            functions = [node for node in tree.body if isinstance(node, Function) and node.name == name]
            if functions:
                return self._verb(source, functions)
            for node in tree.body:
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == name:
                    return self._attribute(source, name, node.annotation, node)
            for node, after in itertools.pairwise(node for function in tree.body for node in getattr(function, "body", ())):
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == f"self.{name}":
                    return self._attribute(source, name, node.annotation, after)
        raise LookupError(f"{self._original.__name__}.{name} is no more: take it from the list")

    def _attribute(self, source: Source, name: str, annotation: ast.expr, after: ast.AST) -> Iterator[str]:
        self.typing |= source.imported(annotation)
        said = re.search(rf"^ *{name}: (.+)$", self._original.__doc__ or "", re.M)
        text = said[1] if said else ast.literal_eval(ast.unparse(after))
        yield f"    @property\n    def {name}(self) -> {ast.unparse(annotation)}:"
        yield f'        """{text}"""\n        return {self._inner}.{name}'

    def _verb(self, source: Source, functions: list[Any]) -> Iterator[str]:
        *overloads, function = functions
        name = RENAMED.get(function.name, function.name)
        for one in overloads:
            yield f"    @overload\n    def {name}({self._parameters(source, one)}) -> {self._returned(source, one)[0]}: ..."
        annotation, made = self._returned(source, function)
        if is_property := any(ast.unparse(decorator) == "property" for decorator in function.decorator_list):
            yield "    @property"
        yield f"    def {name}({self._parameters(source, function)}) -> {annotation}:"
        yield textwrap.indent(f'"""{self._docstring(function)}', "        ")
        call = f"{self._inner}.{function.name}" + ("" if is_property else f"({arguments(function)})")
        if overloads:  # which one is meant is known where the twin is called, not in it
            yield f"        {name}: Any = {self._inner}.{name}"
            call = call.removeprefix(f"{self._inner}.")
        if made is not None:
            yield f"        return {made.format(call=call)}"
        elif isinstance(function, ast.AsyncFunctionDef):
            yield f"        self._run(lambda: {call})"
        elif is_property:
            yield f"        return {call}"
        elif annotation == "None":
            yield f"        self._run(called, lambda: {call})"
        else:
            yield f"        given: {annotation} = self._run(called, lambda: {call})\n        return given"

    def _parameters(self, source: Source, function: Any) -> str:
        self.imports |= source.imported(*function.args.defaults, *filter(None, function.args.kw_defaults))
        every = [*function.args.args[1:], *function.args.kwonlyargs]
        self.typing |= source.imported(*(parameter.annotation for parameter in every))
        text = ast.unparse(function.args)
        for long, short in ALIASES:
            text = re.sub(long, short, text)
        return re.sub(r"=(\w+)", lambda default: f"={source.constants.get(default[1], default[1])}", text)

    def _returned(self, source: Source, function: Any) -> tuple[str, str | None]:
        """The annotation of the twin, and how what it gives comes about where that is not what the verb gives."""
        given = function.returns
        outer, inner = (given.value, given.slice) if isinstance(given, ast.Subscript) else (given, ast.Pass())
        kind, of = ast.unparse(outer), ast.unparse(inner).strip("()")
        if kind not in RETURNS:
            if isinstance(function, ast.AsyncFunctionDef) and kind != "None":
                raise TypeError(f"{function.name} gives {kind}: say in RETURNS how it blocks")
            self.typing |= source.imported(given)
            return ast.unparse(given), None
        if of not in TWINS:
            self.typing |= source.imported(inner)
        annotation, made = RETURNS[kind]
        twin = f"{TWINS[of]}(made, self._run)" if of in TWINS else "made"
        return annotation.format(TWINS.get(of, of)), made.replace("{made}", twin)

    @staticmethod
    def _docstring(function: Any) -> str:
        text = ast.get_docstring(function) or ""
        if function.name in SUMMARIES:
            text = "\n".join((SUMMARIES[function.name], *text.splitlines()[1:]))
        for old, new in WORDS:
            text = re.sub(old, new, text)
        lines = [part for line in text.splitlines() for part in wrapped(line)]
        return "\n".join(lines) + ('\n"""' if len(lines) > 1 else '"""')


def wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent + "    " * (indent != "")) or [""]


def arguments(function: Any) -> str:
    """What a twin hands to the verb."""
    positional = [parameter.arg for parameter in function.args.args[1:]]
    named = [
        f"{one.arg}=asynchronous({one.arg})" if "Peer" in ast.unparse(one.annotation) else f"{one.arg}={one.arg}"
        for one in function.args.kwonlyargs
    ]
    return ", ".join((*positional, *named))


def module() -> str:
    """The text of `polybus.sync.verbs`, as ruff has it."""
    parts = {
        PEER: Twin(polybus.Peer, PEER_VERBS),
        REMOTE_PEER: Twin(polybus.RemotePeer, REMOTE_PEER_VERBS),
        USER: Twin(polybus.User, USER_VERBS),
        CALLER: Twin(polybus.Caller, CALLER_VERBS),
        LISTENER: Twin(polybus.Listener, LISTENER_VERBS),
        BUS: Twin(polybus.Bus, BUS_VERBS),
    }
    named = {*re.findall(r"\w+", MODULE), "AnyPeer"}
    defaults = set().union(*(twin.imports for twin in parts.values()))
    typing = set().union(*(twin.typing for twin in parts.values())) - defaults
    typed = "\n    ".join(line for line in typing if line.split()[-1] not in named)
    head = MODULE.format(imports="\n".join(defaults), typing=typed)
    text = "\n".join((head, *(f"{frame}{'' if frame is LISTENER else CLIENT}{twin.text}\n" for frame, twin in parts.items())))
    for command in (("check", "--fix", "--quiet", "--select", "I,F401"), ("format", "--quiet")):
        ruff = (sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FOLDER / "verbs.py"), "-")
        text = subprocess.run(ruff, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=PACKAGE).stdout
    return text


FOLDER = PACKAGE / "sync"
PAGES = {"verbs.py": module}

if __name__ == "__main__":
    for name, write in PAGES.items():
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(write())
        elif (FOLDER / name).read_text() != write():
            sys.exit(f"sdk/polybus/sync/{name} is out of date: run python scripts/make_blocking.py")
