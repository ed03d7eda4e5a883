"""A class name says one thing in the whole package: no two modules have a class of the same name."""

import ast
from collections import defaultdict

from .sources import PACKAGE, SOURCES, tree_of

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
