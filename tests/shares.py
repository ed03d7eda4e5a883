"""Shares of a contract among its classes: each class is a protocol in a form on a transport, and has all of its tests.

`make test-all` runs them all. In `make test` a test runs in as many of a protocol's classes as it takes to meet each of their
forms, transports and loops, in others than the next test: what it leaves out are combinations of three and more. Where classes
are alike but for the protocol, or for a way of a transport, it runs in one of them.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping
from typing import Any

from tests.loops import FULL, LOOPS

__all__ = ["chosen", "classes_of", "share_out", "take_turns", "left_to", "traits_of"]

_NAME = re.compile(r"Test(?P<form>\w+?)(Over(?P<transport>\w+))?")


def classes_of(names: Mapping[str, Any]) -> dict[str, Any]:
    """The classes of tests among the names of a module."""
    return {name: value for name, value in names.items() if name.startswith("Test") and isinstance(value, type)}


def left_to(cls: Any) -> set[str]:
    """Names of the tests that a class runs."""
    found = {name: getattr(cls, name) for name in dir(cls) if name.startswith("test_")}
    skipped = {name for name, test in found.items() if any(mark.name == "skip" for mark in getattr(test, "pytestmark", ()))}
    return {name for name, test in found.items() if test is not None} - skipped


def traits_of(name: str, cls: Any) -> frozenset[Hashable]:
    """What a class differs in from the others of its protocol, by its name: `TestUbreJsonOverTcp`."""
    match = _NAME.fullmatch(name)
    assert match is not None, name
    transport = getattr(cls, "over", None) or str(match["transport"]).lower()
    loops = getattr(cls, "loops", LOOPS)
    return frozenset([f"form {match['form']}", f"transport {transport.replace('websocket', 'ws')}", *loops])


def chosen(classes: Mapping[str, frozenset[Hashable]], used: Counter[str]) -> set[str]:
    """Some of these classes, in which each of their traits is met: those that were used least, as the count says."""
    having = Counter(trait for traits in classes.values() for trait in traits)
    found, missing = set[str](), {*having}
    while missing:
        rarest = min(missing, key=lambda trait: (having[trait], str(trait)))
        able = [name for name, traits in classes.items() if rarest in traits]
        best = min(able, key=lambda name: (used[name] - len(classes[name] & missing), name))
        found.add(best)
        missing -= classes[best]
    used.update(found)
    return found


def share_out(classes: Mapping[str, Any], *, full: bool = FULL) -> None:
    """Leave each of these classes its share of the tests of its protocol; with `full`, all of them."""
    protocols = defaultdict[str, dict[str, Any]](dict)
    for name, cls in classes.items():
        protocols[cls.make().name][name] = cls
    for group in protocols.values():
        _leave(group, {name: traits_of(name, cls) for name, cls in group.items()}, full)


def take_turns(classes: Mapping[str, Any], *, full: bool = FULL) -> None:
    """Leave each test to one of these classes; with `full`, to all of them."""
    _leave(classes, dict.fromkeys(classes, frozenset(["any"])), full)


def _leave(classes: Mapping[str, Any], traits: Mapping[str, frozenset[Hashable]], full: bool) -> None:
    if full:
        return
    tests = {name: left_to(cls) for name, cls in classes.items()}
    used = Counter[str]()
    for test in sorted(set[str]().union(*tests.values())):
        able = {name: traits[name] for name in classes if test in tests[name]}
        for name in able.keys() - chosen(able, used):
            setattr(classes[name], test, None)  # pytest collects no test of this name
