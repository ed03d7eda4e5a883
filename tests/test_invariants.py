"""The house's own rules: who may import whom, what an import may load, and that nothing mutable lives in a module."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import polybus

PACKAGE = Path(polybus.__file__).parent

# From the ground up. A module imports from its own floor and from those below; type checkers' imports do not count.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset(
        {"arguments", "backoff", "errors", "limits", "headers", "stats", "_clock", "_loop", "_scopes", "offences", "urgency"}
    ),
    frozenset({"body", "conversion", "events", "subjects", "subject_index", "context"}),
    frozenset({"message"}),
    frozenset({"plugins"}),
    frozenset({"protocols", "transports"}),
    frozenset({"account", "urls", "targets", "reply", "hello", "outbox", "workers", "eager", "runtime", "threads", "channel"}),
    frozenset({"signatures", "handlers", "authority", "router"}),
    frozenset({"blocking_items", "blocking_peer"}),
    frozenset({"blocking", "calls", "channel_calls", "execution", "event_stream", "lifespan", "loopback"}),
    frozenset({"known_peer", "turns", "answering", "acquaintance", "channelled", "peer", "openings", "incoming"})
    | frozenset({"inbox", "deliveries", "crowd", "backlog", "outflow", "inflow", "link", "relaying", "tunnel"}),
    frozenset({"subscription", "interest", "fanout", "distribution"}),
    frozenset({"connecting", "serving", "draining", "life", "tunnels", "links", "routing", "passages", "broker"})
    | frozenset({"asking", "publishing", "bus"}),
    frozenset({"portal", "gateway"}),
    frozenset({"_connect", "delivery", "health", "running", "sync", "__init__"}),
    frozenset({"capture"}),
    frozenset({"spark"}),
    frozenset({"testing", "cli", "demo", "fastapi"}),
)
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}
SOURCES = sorted(PACKAGE.rglob("*.py"))


def room(path: Path) -> str:
    """The module's name on the floor plan: the first part of its path."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0].removesuffix(".py")


def run_time_imports(tree: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All imports but those under ``if TYPE_CHECKING:``, also those inside functions."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        else:
            yield from run_time_imports(node)


def imported_rooms(path: Path) -> set[str]:
    folder = path.relative_to(PACKAGE).parts[:-1]
    rooms: set[str] = set()
    for node in run_time_imports(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = folder[: len(folder) - (node.level - 1)]
            names = [*base, *(node.module or "").split(".")] if node.module else [*base]
            if names:
                rooms.add(names[0])
            else:
                rooms.update(alias.name for alias in node.names)
    return rooms


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_imports_from_a_higher_floor(path: Path) -> None:
    own = room(path)
    assert own in LEVEL, f"{own} has no floor: give it one in FLOORS"
    above = {name for name in imported_rooms(path) if LEVEL.get(name, -1) > LEVEL[own]}
    assert not above, f"{own} stands below {', '.join(sorted(above))}"


@pytest.mark.parametrize("path", sorted((PACKAGE / "protocols").rglob("*.py")), ids=lambda path: path.name)
def test_protocols_do_no_input_or_output(path: Path) -> None:
    forbidden = {"anyio", "asyncio", "trio", "socket", "ssl", "threading", "time"}
    for node in run_time_imports(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        assert not {name.split(".")[0] for name in names} & forbidden
    assert "transports" not in imported_rooms(path)


def test_importing_polybus_loads_only_what_the_core_needs() -> None:
    heavy = (
        "websockets httpx cloudevents google.protobuf uvloop fastapi starlette uvicorn pyarrow pyspark trio typer rich pydantic"
    )
    script = f"import sys, polybus; print(*[name for name in {heavy.split()!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == []


MUTABLE = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
CONSTRUCTORS = {"dict", "list", "set", "deque", "defaultdict", "WeakSet", "WeakKeyDictionary", "WeakValueDictionary", "Counter"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_keeps_mutable_state(path: Path) -> None:
    tree = ast.parse(path.read_text())
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
            assert not names & (changed | called), f"{names} is changed while the program runs"
