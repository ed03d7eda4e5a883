"""Build of a wheel whose hot modules are compiled by mypyc; see docs/how-to/compiled.md.

The modules are compiled from a copy in which a class of attrs is a plain one with an ``__init__`` that is written out: mypyc
makes no native class of one that a decorator returns. Every other line stays as it is and where it is, so that tracebacks
name the lines of the source.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeGuard

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES: Final = "sdk"
MODULES: Final = tuple(
    f"polybus/{name}.py"
    for name in """
    body message
    _validation
    _util/cancel_scopes _util/pattern_index _util/priority_queue _util/typed_body _util/violation_counter
    _core/answer_sizes _core/memory _core/places _core/runtime _core/services _core/workers
    _handlers/handler _handlers/lookup
    _rpc/asker _rpc/call _rpc/internal_reply _rpc/reply
    _link/link _link/receiver _link/recording _link/send_queue
    _peer/inbound_calls _peer/peer _peer/queue _peer/responses
    _pubsub/handler_subscription _pubsub/publisher _pubsub/receiver _pubsub/recipients
    _bus/links
    protocols/_rules protocols/ubre/checks protocols/ubre/codec
    protocols/ubre/json_reader protocols/ubre/json_writer protocols/ubre/session
    transports/_stream/framer transports/_stream/length_prefix transports/_stream/pace transports/_stream/prefixed
    transports/_stream/rations transports/_stream/transport
    """.split()
)
"""The modules that a message passes through on its way, but for the wires: these stand on classes of the event loop.

None may suspend while it handles an exception (`await` in `except` or `finally`, ``async with``): what mypyc 2.4 makes of that
loses the exception, or crashes. None may have a class with a base that is not compiled, either (see `strangers`).
"""
MYPY: Final = """
[mypy]
explicit_package_bases = True
namespace_packages = True
ignore_missing_imports = True
disable_error_code = misc, assignment, arg-type, return-value, attr-defined, union-attr, no-untyped-call, has-type, type-arg,
    valid-type, call-arg, type-var, override, no-any-return, var-annotated, unused-awaitable, call-overload, operator, index,
    overload-overlap, overload-cannot-match, method-assign, func-returns-value
"""
"""Types are checked by `make lint`: here mypy only finds them, in copies whose classes are rewritten."""
FUTURE: Final = "from __future__ import annotations"
IMPORTS: Final = "from types import GenericAlias; from typing import Any, ClassVar, TYPE_CHECKING"
CAUSED: Final = '_caused = lambda error, cause: (setattr(error, "__cause__", cause), error)[1]'
"""In place of ``raise ... from``: mypyc drops the cause."""
MYPYC_IMPORT: Final = "if TYPE_CHECKING: from mypy_extensions import mypyc_attr"
OPENED: Final = ("Message", "JsonFormat", "OctetsFormat", "TextFormat")
"""Classes whose methods take anything as an argument, as they do in Python."""
COPIED: Final = ("Message",)
"""Classes that `copy.copy` is used with: copies of a native one are made of what it says of its state."""
SET_BEHIND: Final = {
    "awaited_first": ("__bool__(self) -> bool", "__contains__(self, x: Any) -> bool", "__getitem__(self, x: Any) -> Any")
}
"""Of decorators that set operators: one of each table of C, in which only a class that has an operator can be given others."""
SETUP: Final = """
from mypyc.build import mypycify
from setuptools import setup

modules = mypycify({arguments!r}, opt_level={level!r}, debug_level="0", group_name="polybus")
setup(name="polybus", packages=[], ext_modules=modules)
"""


def name_of(expression: ast.expr) -> str:
    """The last name of a decorator or base."""
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=inner) | ast.Subscript(value=inner):
            return name_of(inner)
    raise ValueError(f"line {expression.lineno}: {ast.unparse(expression)} has no name")


def classes_of(tree: ast.Module) -> Iterator[ast.ClassDef]:
    return (node for node in tree.body if isinstance(node, ast.ClassDef))


def suspensions(tree: ast.AST) -> Iterator[int]:
    """The lines in which code is left and entered again while it handles an exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncWith):
            yield node.lineno
        elif isinstance(node, ast.Try | ast.TryStar):
            handling = [*node.finalbody, *(line for handler in node.handlers for line in handler.body)]
            yield from (line.lineno for line in handling if any(leaves(inner) for inner in ast.walk(line)))


def leaves(node: ast.AST) -> bool:
    if isinstance(node, ast.comprehension):
        return bool(node.is_async)
    return isinstance(node, ast.Await | ast.AsyncFor | ast.Yield | ast.YieldFrom)


def strangers(tree: ast.Module, native: set[str]) -> Iterator[int]:
    """The lines of classes with a base that is not compiled: weak references to their instances would be left dangling."""
    for found in classes_of(tree):
        names = {name_of(base) for base in found.bases}
        if not is_no_native_class(found) and names - native - {"ABC", "Generic"}:
            yield found.lineno


def is_no_native_class(found: ast.ClassDef) -> bool:
    return any(ast.unparse(base) in ("Protocol", "enum.Enum") for base in found.bases)


def becomes_plain(decorator: ast.expr) -> bool:
    """Check for a decorator of attrs whose class has nothing of it but its ``__init__``."""
    eq = arguments_of(decorator).get("eq")
    return name_of(decorator) in ("define", "frozen") and isinstance(eq, ast.Constant) and eq.value is False


def is_field(node: ast.stmt) -> TypeGuard[ast.AnnAssign]:
    return isinstance(node, ast.AnnAssign) and "ClassVar" not in ast.unparse(node.annotation)


def end_of_fields(found: ast.ClassDef) -> int:
    """The last line of the fields and of what is said of the last one."""
    last = 0
    for node in found.body:
        if is_field(node) or (last and isinstance(node, ast.Expr)):
            last = end_of(node)
    return last


def arguments_of(call: ast.expr | None) -> dict[str | None, ast.expr]:
    return {keyword.arg: keyword.value for keyword in call.keywords} if isinstance(call, ast.Call) else {}


class Field:
    """One attribute of a class of attrs.

    Attributes:
        node: What the source says of it.
        name: Of the attribute.
        kind: Its annotation.
        init: True if ``__init__`` takes it.
        named: True if ``__init__`` takes it by name alone.
        parameter: What it is in the head of ``__init__``.
        value: What it is set to there, or None.
    """

    def __init__(self, node: ast.AnnAssign, source: Callable[[ast.AST], str], all_named: bool) -> None:
        assert isinstance(node.target, ast.Name)
        self.node = node
        self.name = node.target.id
        self.kind = source(node.annotation)
        is_call = isinstance(node.value, ast.Call) and name_of(node.value) == "field"
        options = arguments_of(node.value) if is_call else {"default": node.value} if node.value else {}
        unknown = options.keys() - {"default", "factory", "init", "kw_only", "alias"}
        if unknown:
            raise ValueError(f"the field {self.name} has {unknown}, which compiled classes do not have: leave its module out")
        said = {name: ast.literal_eval(options[name]) for name in ("init", "kw_only", "alias") if name in options}
        self.init: bool = said.get("init", True)
        self.named: bool = said.get("kw_only", all_named)
        made = f"({source(options['factory'])})()" if "factory" in options else None
        default = source(options["default"]) if "default" in options else None
        alias = said.get("alias", self.name.lstrip("_"))
        if made is None:
            self.parameter = f"{alias}: {self.kind}" + ("" if default is None else f" = {default}")
            self.value = alias if self.init else default
        else:
            self.parameter = f"{alias}: {self.kind} | None = None"
            self.value = f"{made} if {alias} is None else {alias}" if self.init else made


class NativeSource:
    """The text of one module, as mypyc is given it."""

    def __init__(self, text: str, extended: set[str]) -> None:
        """Rewrite the text of a module.

        Args:
            text: The module.
            extended: Names of classes that interpreted ones extend.
        """
        self._text = text
        self._lines = [*text.splitlines(), "", ""]
        tree = ast.parse(text)
        self._open_arguments(tree)
        raises = [node for node in ast.walk(tree) if isinstance(node, ast.Raise) and node.cause is not None]
        for node in raises:
            self._set_cause(node)
        classes = [*classes_of(tree)]
        for found in classes:
            self._make_native(found, found.name in extended)
        line = self._lines.index(FUTURE)
        self._lines[line : line + 2] = f"{FUTURE}; {IMPORTS}{'; ' + CAUSED if raises else ''}", MYPYC_IMPORT

    @property
    def text(self) -> str:
        """The same lines at the same places, some of them rewritten."""
        return "\n".join(self._lines) + "\n"

    def _make_native(self, found: ast.ClassDef, extended: bool) -> None:
        of_attrs = [one for one in found.decorator_list if name_of(one) in ("define", "frozen")]
        if of_attrs and not becomes_plain(of_attrs[0]):
            return  # compiled, but no native class
        if extended and [ast.unparse(base) for base in found.bases] == ["Protocol"]:
            # Made as Python makes it, which mypyc does where it does not know a decorator.
            self._mark(found, "(lambda kind: kind)")
            return
        if found.keywords:
            raise ValueError(f"the class {found.name} has a metaclass: leave its module out")
        behind = [*self._free_from_bases(found), *self._move_hidden(found)]
        if of_attrs:
            names = self._write_init(found, of_attrs[0])
            behind.append(f'setattr({found.name}, "__match_args__", {names!r})')
        for decorator in found.decorator_list:
            self._blank(decorator)
        # These mark the class and give it back: they can as well be called behind it.
        others = [one for one in found.decorator_list if one not in of_attrs]
        behind += [f"{self._source(one)}({found.name})" for one in others]
        self._make_room([head for one in others for head in SET_BEHIND.get(name_of(one), ())], found)
        if behind:
            self._lines[self._lines.index("", end_of(found))] = "; ".join(behind)
        if extended and not is_no_native_class(found):
            self._open(found)

    def _open(self, found: ast.ClassDef) -> None:
        """Let interpreted classes extend this one and change its constants."""
        copied = ", serializable=True" if found.name in COPIED else ""
        self._mark(found, f"mypyc_attr(allow_interpreted_subclasses=True{copied})")
        for node in found.body:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                line = self._lines[node.lineno - 1]
                self._lines[node.lineno - 1] = line.replace(" =", f": ClassVar[{type(node.value.value).__name__}] =", 1)

    def _mark(self, found: ast.ClassDef, decorator: str) -> None:
        first = min([found.lineno, *(one.lineno for one in found.decorator_list)])
        if self._lines[first - 2] and not self._lines[first - 2].startswith("#"):
            raise ValueError(f"the line before the class {found.name} is not empty")
        self._lines[first - 2] = f"@{decorator}"

    def _set_cause(self, node: ast.Raise) -> None:
        """Rewrite ``raise error from cause``, where it stands on one line."""
        assert node.exc is not None and node.cause is not None
        if node.lineno != node.end_lineno or isinstance(node.exc, ast.Name) and node.exc.id[0].isupper():
            raise ValueError(
                f"line {node.lineno}: a cause of more than one line, or of a class: raise an instance, on one line"
            )
        line = self._lines[node.lineno - 1]
        error, cause = ast.get_source_segment(self._text, node.exc), ast.get_source_segment(self._text, node.cause)
        whole = f"raise {error} from {cause}"
        if whole not in line:
            raise ValueError(f"line {node.lineno}: not written as `{whole}`")
        self._lines[node.lineno - 1] = line.replace(whole, f"raise _caused({error}, {cause})")

    def _make_room(self, heads: list[str], found: ast.ClassDef) -> None:
        """Put operators that raise into the empty lines behind the first methods."""
        methods = [node for node in found.body if isinstance(node, ast.FunctionDef)]
        for head, method in zip(heads, methods[: len(heads)], strict=True):
            assert not self._lines[end_of(method)], "a method with nothing behind it"
            self._lines[end_of(method)] = f"    def {head}: raise TypeError"

    def _open_arguments(self, tree: ast.Module) -> None:
        """Take anything as an argument of what applications call, which says itself what is wrong: mypyc would say less.

        That is whatever has overloads, takes any subject, or belongs to what applications make themselves.
        """
        opened = {node for found in classes_of(tree) if found.name in OPENED for node in found.body}
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        overloaded = {node.name for node in functions if any(name_of(one) == "overload" for one in node.decorator_list)}
        for node in functions:
            for one in reversed([*node.args.args, *node.args.kwonlyargs]):
                if (kind := one.annotation) is not None and (
                    node in opened or node.name in overloaded or self._source(kind) == "AnySubject"
                ):
                    line = self._lines[kind.lineno - 1]
                    self._lines[kind.lineno - 1] = f"{line[: kind.col_offset]}Any{line[kind.end_col_offset :]}"

    def _free_from_bases(self, found: ast.ClassDef) -> Iterator[str]:
        """Take away the bases that are for type checkers, and give what stands for them; see `strangers`."""
        names = [name_of(base) for base in found.bases]
        if is_no_native_class(found):
            return
        kept = ", ".join(name for name in names if name not in ("ABC", "Generic"))
        if found.bases:
            head = f"class {found.name}({kept}):" if kept else f"class {found.name}:"
            self._lines[found.lineno - 1] = head
        if "Generic" in names:
            yield f'setattr({found.name}, "__class_getitem__", classmethod(GenericAlias))'

    def _move_hidden(self, found: ast.ClassDef) -> Iterator[str]:
        """Take what mypyc has no code for, and give it as statements.

        That is what a class body hides from type checkers, and second names of its methods.
        """
        methods = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
        for node in found.body:
            if isinstance(node, ast.If):
                if ast.unparse(node.test) != "not TYPE_CHECKING" or node.orelse:
                    raise ValueError(f"line {node.lineno}: a condition in a class body: leave the module out")
                self._blank(node)
                for hidden in node.body:
                    assert isinstance(hidden, ast.Assign)
                    yield f'setattr({found.name}, "{name_of(hidden.targets[0])}", {self._source(hidden.value)})'
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in methods:
                self._blank(node)
                yield f'setattr({found.name}, "{name_of(node.targets[0])}", {found.name}.{node.value.id})'

    def _write_init(self, found: ast.ClassDef, decorator: ast.expr) -> tuple[str, ...]:
        """Put an ``__init__`` into the empty line behind the fields, and take their values away.

        Returns:
            The names that it takes by position: attrs' ``__match_args__``.
        """
        options = arguments_of(decorator)
        all_named = "kw_only" in options and bool(ast.literal_eval(options["kw_only"]))
        fields = [Field(node, self._source, all_named) for node in found.body if is_field(node)]
        for field in fields:
            if field.node.value is not None:
                self._blank(field.node)
                self._lines[field.node.lineno - 1] = f"    {field.name}: {field.kind}"
        given = [field for field in fields if field.init]
        positional, named = ([field for field in given if field.named is wanted] for wanted in (False, True))
        parameters = ["self", *(field.parameter for field in positional), *["*"][: len(named)], *(f.parameter for f in named)]
        body = [f"self.{field.name} = {field.value}" for field in fields if field.value is not None]
        if any(isinstance(node, ast.FunctionDef) and node.name == "__attrs_post_init__" for node in found.body):
            body.append("self.__attrs_post_init__()")
        line = self._lines.index("", end_of_fields(found))
        self._lines[line] = f"    def __init__({', '.join(parameters)}) -> None: {'; '.join(body) or 'pass'}"
        return tuple(field.name for field in positional)

    def _source(self, node: ast.AST) -> str:
        return " ".join(line.strip() for line in (ast.get_source_segment(self._text, node) or "").splitlines())

    def _blank(self, node: ast.expr | ast.stmt) -> None:
        for line in range(node.lineno - 1, end_of(node)):
            self._lines[line] = ""


def end_of(node: ast.expr | ast.stmt) -> int:
    """The last line of a node, counted from 1."""
    assert node.end_lineno is not None
    return node.end_lineno


def extended_classes(package: Path) -> set[str]:
    """Names of the classes that a module extends which is not compiled, or that applications may extend."""
    rest = [path for path in package.rglob("*.py") if path.relative_to(package.parent).as_posix() not in MODULES]
    nodes = (node for path in rest for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    extended = {name_of(base) for node in nodes if isinstance(node, ast.ClassDef) for base in node.bases}
    named = [ast.parse((package / name).read_text(encoding="utf-8")) for name in ("__init__.py", "body.py", "message.py")]
    texts = (node.value for tree in named for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return extended | {text for text in texts if isinstance(text, str)}


def native_sources(root: Path, copy: Path) -> None:
    """Copy the sources in `root` to `copy`, the modules that are compiled as mypyc takes them.

    Raises:
        ValueError: A module has what compiled ones cannot have; the text names its line.
    """
    shutil.copytree(root / SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    extended = extended_classes(copy / "polybus")
    native = {found.name for name in MODULES for found in classes_of(ast.parse((copy / name).read_text(encoding="utf-8")))}
    for name in MODULES:
        path = copy / name
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        if (line := next(suspensions(tree), None)) is not None:
            raise ValueError(f"{name}, line {line} suspends while it handles an exception: say it elsewhere, or leave it out")
        if (line := next(strangers(tree, native), None)) is not None:
            raise ValueError(f"{name}, line {line}: a class has a base that is not compiled: compile both or none")
        path.write_text(NativeSource(text, extended).text, encoding="utf-8")


def compile_modules(root: Path, work: Path, level: str = "3") -> list[Path]:
    """Compile the modules of the sources in `root` in a copy below `work`, at a level of the C compiler's optimisation.

    Returns:
        The paths of the shared libraries, below ``work / SOURCES``.

    Raises:
        ValueError: A module has what compiled ones cannot have; the text names its line.
        RuntimeError: mypyc or the C compiler refuses; with what they have said.
    """
    copy = work / SOURCES
    native_sources(root, copy)
    (copy / "mypy.ini").write_text(MYPY)
    (copy / "setup.py").write_text(SETUP.format(arguments=["--config-file", "mypy.ini", *MODULES], level=level))
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", "compiled"]
    done = subprocess.run(command, cwd=copy, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"mypyc does not compile polybus:\n{done.stdout}\n{done.stderr}")
    return sorted(path for path in (copy / "compiled").rglob("*") if path.is_file())


class CompiledModules(BuildHookInterface[BuilderConfig]):
    """Hook of hatch, which is off unless it is asked for."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and name what is to be in the wheel beside the sources; an editable one has the sources alone."""
        if version == "editable":
            return
        self._work = tempfile.TemporaryDirectory()
        work = Path(self._work.name)
        for path in compile_modules(Path(self.root), work, os.environ.get("MYPYC_OPT_LEVEL", "3")):
            build_data["force_include"][str(path)] = path.relative_to(work / SOURCES / "compiled").as_posix()
        build_data["pure_python"], build_data["infer_tag"] = False, True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the copy."""
        if version == "editable":
            return
        self._work.cleanup()
