"""The modules of polybus, each parsed once for all tests."""

import ast
import functools
from pathlib import Path

import polybus

PACKAGE = Path(polybus.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))
