"""The house's own rules: what an import may load, that nothing mutable lives in a module, names of classes, docstrings. Who may
import whom is in `pyproject.toml`, for `make lint`."""

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from msgspec import Struct

from .sources import PACKAGE, SOURCES, tree_of


def test_importing_polybus_loads_only_what_the_core_needs() -> None:
    heavy = (
        "websockets httpx cloudevents google.protobuf uvloop fastapi starlette uvicorn pyarrow pyspark trio typer rich "
        "pydantic http.cookies polybus._core.tunnel polybus.bridges "
        "polybus._core.bus.tunnel_listener polybus._util.http_status polybus.broker polybus.cluster polybus.protocols "
        "polybus.sync polybus.transports"
    )
    script = f"import sys, polybus; print(*[name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


MOST_ATTRS_CLASSES = 38
"""An attrs class costs the import as much as forty Structs: it is for what checks its arguments, or is often written to."""


def test_importing_polybus_makes_few_classes_of_attrs() -> None:
    script = (
        "import gc, polybus; ours = {k for k in gc.get_objects() if isinstance(k, type) and k.__module__[:7] == 'polybus'}; "
        "print(sum('__attrs_attrs__' in vars(k) for k in ours))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) <= MOST_ATTRS_CLASSES


def test_the_records_of_the_public_modules_can_be_referred_to_weakly() -> None:
    paths = (*PACKAGE.glob("[!_]*.py"), *PACKAGE.glob("plugins/[!_]*.py"))
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in paths]
    kinds = [kind for name in names for kind in vars(importlib.import_module(name)).values() if isinstance(kind, type)]
    records = {kind for kind in kinds if issubclass(kind, Struct) and kind.__module__ in names and kind.__name__[0] != "_"}
    assert len(records) > 30
    assert not [kind for kind in records if not kind.__weakrefoffset__]


def test_no_module_has_the_name_of_something_public_beside_it() -> None:
    packages = ["polybus", *(f"polybus.{path.parent.name}" for path in PACKAGE.glob("*/__init__.py"))]
    # Importing such a module would put it in the place of the function or class of that name.
    hidden = {
        package: names
        for package in packages
        if hasattr(module := importlib.import_module(package), "__getattr__")
        and (
            names := {
                path.stem
                for path in Path(module.__path__[0]).iterdir()
                if path.suffix == ".py" or (path / "__init__.py").exists()
            }
            & set(getattr(module, "__all__", ()))
        )
    }
    assert hidden == {}


MUTABLE = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
CONSTRUCTORS = {"dict", "list", "set", "deque", "defaultdict", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "Counter"}


def changed_globals(tree: ast.Module) -> set[str]:
    """Names of a module that hold what can change, and that it does change."""
    held = set[str]()
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = {ast.unparse(target) for target in node.targets}
        elif isinstance(node, ast.AnnAssign):
            names = {ast.unparse(node.target)}
        else:
            continue
        value = node.value
        function = ast.unparse(value.func).split(".")[-1] if isinstance(value, ast.Call) else ""
        if isinstance(value, MUTABLE) or function in CONSTRUCTORS:
            held |= names
    if not held:
        return set()
    changed = {
        ast.unparse(target.value)
        for node in ast.walk(tree)
        for target in ([*node.targets] if isinstance(node, ast.Assign) else [])
        if isinstance(target, ast.Subscript)
    }
    called = {
        ast.unparse(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"append", "add", "update", "pop", "clear", "setdefault", "remove", "extend", "insert"}
    }
    return held & (changed | called)


def test_no_module_keeps_mutable_state() -> None:
    found = {str(path.relative_to(PACKAGE)): changed_globals(tree_of(path)) for path in SOURCES}
    assert len(found) > 300
    assert {path: names for path, names in found.items() if names} == {}


ALLOWED = {"Bus"}
"""`polybus.sync.Bus` is called as the class is whose blocking twin it is: a program changes one import."""


def test_no_two_classes_of_the_package_have_the_same_name() -> None:
    places = defaultdict(list)
    for path in SOURCES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    twice = {name: where for name, where in places.items() if len(where) > 1 and name not in ALLOWED}
    assert twice == {}, "call one of them something else"


RIDDLE = re.compile(r'^ *"""((What|Who|Whose|Whether|Where|When|How|Those|Which)\b.*)', re.MULTILINE)


def test_no_docstring_begins_as_a_riddle() -> None:
    found = [f"{path.relative_to(PACKAGE)}: {riddle[1]}" for path in SOURCES for riddle in RIDDLE.finditer(path.read_text())]
    assert found == []
