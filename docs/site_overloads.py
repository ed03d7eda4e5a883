"""Shows verbs that a stub declares by overloads alone, those of `polybus.sync`: griffe calls this."""

from __future__ import annotations

from typing import Any

import griffe


class StubbedOverloads(griffe.Extension):
    """A verb is shown with the last of its overloads, which has the docstring, and with the parameters of its original."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        stubbed = {name: overloads[-1] for name, overloads in cls.overloads.items() if overloads and name not in cls.members}
        if stubbed:
            cls.members |= stubbed
            cls.members = dict(sorted(cls.members.items(), key=lambda member: member[1].lineno or 0))

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        twins = {name: member for name, member in pkg["sync.verbs"].members.items() if name.startswith("Blocking")}
        for name, twin in twins.items():
            if twin.is_alias:
                continue
            originals = pkg[name.removeprefix("Blocking")].all_members
            for verb in twin.members.values():
                if verb.name in originals and not verb.is_alias and verb.is_function:
                    verb.parameters = originals[verb.name].parameters
