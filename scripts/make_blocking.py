"""Writes the types of the blocking twin, ``polybus/sync/verbs.pyi``, from the methods of the originals.

``python scripts/make_blocking.py`` writes the stub, ``--check`` only compares it. A method keeps its parameters, overloads
and docstring; `polybus.sync.twin` determines its return type.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polybus
from polybus.sync import verbs
from polybus.sync.twin import AskingTwin, Twin, names_of, twins, way_of

PACKAGE = Path(polybus.__file__).parent
FOLDER = PACKAGE / "sync"
WIDTH = 120
Function = ast.FunctionDef | ast.AsyncFunctionDef

MODULE = """\
# Made by `python scripts/make_blocking.py` from the originals.

from typing import Any, ClassVar, TypeAlias, TypeVar, overload

from typing_extensions import TypeForm

from .. import Survey
from .._core.handlers.signature import ContextPart
from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run
from .twin import Twin
{imports}

__all__ = {exported}

In = TypeVar("In")
Out = TypeVar("Out")
P = TypeVar("P")
T = TypeVar("T")

AnyPeer: TypeAlias = Peer | RemotePeer | BlockingPeer | BlockingRemotePeer
"""

CLASS = """
class {name}(Twin):
{text}
{marked}
    _original: {original}
    def __init__(self, original: {original}, run: Run) -> None: ...
"""


class Source:
    """Source of a module: its classes, and the origin of its names."""

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
        """Imports of the names used there."""
        names = {node.id for root in nodes for node in ast.walk(root) if isinstance(node, ast.Name)}
        return {self._imports[name] for name in names & set(self._imports)}


@functools.cache
def source_of(cls: type) -> Source:
    """Not by `inspect.getsource`: public classes claim to belong to `polybus`."""
    for member in vars(cls).values():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function):
            return Source(Path(inspect.unwrap(function).__code__.co_filename))
    raise LookupError(f"{cls.__name__} has no methods")


class Stub:
    """Members of one class as text, from its original."""

    def __init__(self, original: type, twin: type[Twin]) -> None:
        self._twin = twin
        self._original = original
        self.imports: set[str] = source_of(original).imported(ast.Name(original.__name__))
        marked = "    __context_part__: ClassVar[ContextPart]" if hasattr(original, "__context_part__") else ""
        head = CLASS.format(name=twin.__name__, text=documented(twin, "    "), original=original.__name__, marked=marked)
        parts = [*self._client()] if issubclass(twin, AskingTwin) else []
        parts += [line for name, there in names_of(twin).items() for line in self._member(name, there)]
        self.text = "\n".join((head, *parts))

    def _client(self) -> Iterator[str]:
        yield '    def client(self, contract: TypeForm[P], prefix: str = "") -> P:'
        yield self._documented("client")

    def _member(self, name: str, there: str) -> Iterator[str]:
        for cls in self._original.__mro__[:-1]:
            source = source_of(cls)
            tree = source.classes[cls.__name__]
            functions = [node for node in tree.body if isinstance(node, Function) and node.name == there]
            if functions:
                return self._verb(source, name, functions)
            for node in (*tree.body, *(node for function in tree.body for node in getattr(function, "body", ()))):
                if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) in (name, f"self.{name}"):
                    return self._property(source, name, node.annotation)
        raise LookupError(f"{self._original.__name__}.{there} is no more: take it from the verbs of {self._twin.__name__}")

    def _property(self, source: Source, name: str, annotation: ast.expr) -> Iterator[str]:
        self.imports |= source.imported(annotation)
        yield f"    @property\n    def {name}(self) -> {way_of(ast.unparse(annotation))[1]}:"
        yield self._documented(name)

    def _verb(self, source: Source, name: str, functions: list[Any]) -> Iterator[str]:
        *overloads, function = functions
        if any(ast.unparse(decorator) == "property" for decorator in function.decorator_list):
            yield from self._property(source, name, function.returns)
            return
        for one in overloads or [function]:
            self.imports |= source.imported(
                one.returns,
                *one.args.defaults,
                *filter(None, one.args.kw_defaults),
                *(parameter.annotation for parameter in (*one.args.args[1:], *one.args.kwonlyargs)),
            )
            parameters = re.sub(r"\b(Any)?Peer\b", "AnyPeer", ast.unparse(one.args))
            parameters = re.sub(r"=(\w+)", lambda default: f"={source.constants.get(default[1], default[1])}", parameters)
            if overloads:
                yield "    @overload"
            yield f"    def {name}({parameters}) -> {way_of(ast.unparse(one.returns))[1]}:"
            yield self._documented(name) if one is (overloads or [function])[-1] else "        ..."

    def _documented(self, name: str) -> str:
        return documented(inspect.getattr_static(self._twin, name), "        ")


def documented(thing: Any, indent: str) -> str:
    """Return the docstring of a class or member as source text."""
    lines = [part for line in (inspect.getdoc(thing) or "").splitlines() for part in wrapped(line)]
    return textwrap.indent('"""' + "\n".join(lines) + ('\n"""' if len(lines) > 1 else '"""'), indent)


def wrapped(line: str) -> list[str]:
    indent = line[: len(line) - len(line.lstrip())]
    return textwrap.wrap(line, WIDTH, subsequent_indent=indent + "    " * (indent != "")) or [""]


def stub() -> str:
    """Text of ``polybus/sync/verbs.pyi`` in ruff's format."""
    parts = [Stub(original, twin) for original, twin in twins().items()]
    named = {*re.findall(r"\w+", MODULE)} - {"Peer", "RemotePeer"}
    imports = sorted(set().union(*(part.imports for part in parts)))
    lines = "\n".join(line for line in imports if line.split()[-1] not in named)
    text = MODULE.format(imports=lines, exported=sorted(verbs.__all__)) + "\n".join(part.text for part in parts)
    for command in (("check", "--fix", "--quiet", "--select", "I,F401"), ("format", "--quiet")):
        ruff = (sys.executable, "-m", "ruff", *command, "--stdin-filename", str(FOLDER / "verbs.pyi"), "-")
        text = subprocess.run(ruff, input=text, stdout=subprocess.PIPE, text=True, check=True, cwd=PACKAGE).stdout
    return text


PAGES = {"verbs.pyi": stub}

if __name__ == "__main__":
    for name, write in PAGES.items():
        if "--check" not in sys.argv:
            (FOLDER / name).write_text(write())
        elif (FOLDER / name).read_text() != write():
            sys.exit(f"sdk/polybus/sync/{name} is out of date: run python scripts/make_blocking.py")
