"""How often a module reads a `_name` of another: counted, and may only fall.

`tests/house/private_access.txt` has the count of each module. Who lowers one writes the new figure there:
``python -m tests.house.test_private_access``. A figure is never raised: hand in what is needed, or make it public.
"""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

from .sources import PACKAGE, SOURCES, tree_of

TABLE = Path(__file__).with_name("private_access.txt")
PRIVATE = re.compile(r"_[^_]")


def is_itself(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def own_names(nodes: list[ast.AST]) -> set[str]:
    """Names that a module defines itself: functions, classes, variables, attributes of `self`, slots."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_itself(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def foreign_reads(tree: ast.Module) -> list[str]:
    """What a module reads of others' private names, as it is written there."""
    nodes = list(ast.walk(tree))
    own = own_names(nodes)
    return [
        ast.unparse(node)
        for node in nodes
        if isinstance(node, ast.Attribute)
        and PRIVATE.match(node.attr)
        and node.attr not in own
        and not is_itself(node.value)
        and ast.unparse(node.value) != "super()"
    ]


@functools.cache
def counted() -> Counter[str]:
    modules = (path for path in SOURCES if not path.name.endswith("_pb2.py"))
    counts = {str(path.relative_to(PACKAGE)): len(foreign_reads(tree_of(path))) for path in modules}
    return Counter({module: count for module, count in counts.items() if count})


def allowed() -> Counter[str]:
    rows = (line.split() for line in TABLE.read_text().splitlines())
    return Counter({module: int(count) for count, module in rows})


def test_no_module_reads_more_private_names_of_others_than_it_did_and_what_has_become_less_is_written_down() -> None:
    assert counted() - allowed() == Counter(), "hand in what is needed, or make it public"
    assert allowed() - counted() == Counter(), "good: run `python -m tests.house.test_private_access`"


if __name__ == "__main__":
    TABLE.write_text("".join(f"{count:4} {module}\n" for module, count in sorted(counted().items())))
    print(sum(counted().values()), "reads of private names of other modules")
