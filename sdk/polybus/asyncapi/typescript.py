"""Writes the types of a document in TypeScript, for `connect<Shop>("/bus")` in ``polybus.js``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ..subjects import is_pattern
from .schemas import OMITS, REFERENCE, Schema

_PLAIN: Final = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
_HEAD: Final = """\
// Types of {title}: connect<{name}>("/bus"). Made by `polybus schema --typescript`: generate it again instead of editing it.
// JavaScript keeps integers exactly up to 2^53. A type that ends with `Given` is for sending: its defaults can be left out.
"""
_PLACES: Final = ("requests", "streams", "publications", "accepts")


def typescript(document: Mapping[str, Any]) -> str:
    """Return the types of a document in TypeScript: an interface for the bus, and the types that it refers to.

    Channels and numeric subjects are left out because the browser client does not support them.
    """
    parts = document.get("components", {})
    writer = _Types(parts.get("schemas", {}))
    title = document["info"]["title"]
    name = writer.free("".join(word[:1].upper() + word[1:] for word in re.findall(r"\w+", title)) or "Shop")
    members: dict[str, dict[str, tuple[str, list[str]]]] = {place: {} for place in _PLACES}
    for operation in document.get("operations", {}).values():
        place, found = _member(operation, document["channels"], parts["messages"], writer)
        if place:
            known = members[place].setdefault(operation["title"], (operation.get("summary", ""), []))[1]
            known.extend({found} - {*known})
    lines = [f"export interface {name} {{"]
    for place, subjects in members.items():
        lines.append(f"  {place}: {{")
        # Separate from the names: a pattern may have another type than a name that it matches.
        patterns = [subject for subject in subjects if is_pattern(subject)]
        for subject in [*(subject for subject in subjects if subject not in patterns), *patterns]:
            summary, types = subjects[subject]
            if subject == next(iter(patterns), None) and len(patterns) < len(subjects):
                lines.append("  } & {")
            if summary:
                lines.append(f"    /** {summary.replace('*/', '* /')} */")
            lines.append(f"    {_key(subject)}: {'any' if subject in ('*', '>') else ' | '.join(types)}")
        lines.append("  }")
    return "\n".join([_HEAD.format(title=" ".join(title.split()), name=name), *writer.written(), *lines, "}", ""])


def _member(operation: Any, channels: Any, messages: Any, types: _Types) -> tuple[str, str]:
    """Return the section and type of an operation, or two empty strings if the browser client does not support it."""
    style = operation["x-polybus-style"]
    subject = channels[_last(operation["channel"])].get("x-polybus-subject", "")
    if style == "channel" or isinstance(subject, int):
        return "", ""
    given = messages[_last(operation["messages"][0])]["payload"]
    if style == "publication":
        sent = operation["action"] == "send"
        return ("publications" if sent else "accepts"), types.of(given, not sent)
    body = types.of(given, True)
    body = f"body{'?' * (body in ('null', 'any'))}: {body}"
    if style == "notification":
        return "requests", f"{{ {body}; answer: null }}"
    answer = types.of(messages[_last(operation["reply"]["messages"][0])]["payload"], False)
    place, word = ("streams", "item") if style == "stream" else ("requests", "answer")
    return place, f"{{ {body}; {word}: {answer} }}"


def _last(reference: Mapping[str, str]) -> str:
    return reference["$ref"].rpartition("/")[2]


def _key(subject: str) -> str:
    """Return a subject as the name of a member. A wildcard in a pattern matches any text."""
    if not is_pattern(subject):
        return json.dumps(subject)
    mark = "/" if "/" in subject else "."
    tokens = [
        "${string}" if token in ("*", ">") or re.fullmatch(r"\{\w+\}", token) else re.sub(r"([`\\$])", r"\\\1", token)
        for token in subject.split(mark)
    ]
    return f"[subject: {'string' if tokens == ['${string}'] else f'`{mark.join(tokens)}`'}]"


class _Types:
    """The TypeScript types for the schemas of a document."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = schemas
        self._with_defaults = _with_defaults(schemas)
        self._names: dict[tuple[str, bool], str] = {}
        self._made: dict[tuple[str, bool], str] = {}

    def free(self, name: str) -> str:
        name = re.sub(r"\W|^(?=\d)", "_", name)
        while name in self._names.values():
            name += "_"
        return name

    def written(self) -> list[str]:
        return [*self._made.values()]

    def of(self, schema: Any, given: bool) -> str:
        """Return the type of a schema, as sent to the bus or received from it."""
        if not isinstance(schema, dict):
            return "any"
        if "$ref" in schema:
            return self._named(schema["$ref"].removeprefix(REFERENCE), given)
        if "const" in schema or "enum" in schema:
            return f"({' | '.join(json.dumps(value) for value in schema.get('enum', [schema.get('const')]))})"
        for word, mark in (("anyOf", " | "), ("oneOf", " | "), ("allOf", " & ")):
            if word in schema:
                return f"({mark.join(dict.fromkeys(self.of(one, given) for one in schema[word]))})"
        kind = schema.get("type")
        if isinstance(kind, list):
            return f"({' | '.join(self.of({**schema, 'type': one}, given) for one in kind)})"
        if kind == "array":
            items = schema.get("items", {})
            if isinstance(items, list):
                return f"[{', '.join(self.of(one, given) for one in items)}]"
            return f"{self.of(items, given)}[]"
        return self._object(schema, given) if kind == "object" else _PLAIN.get(str(kind), "any")

    def _object(self, schema: Schema, given: bool) -> str:
        required = {*schema.get("required", ())}
        if not given and not schema.get(OMITS):  # written objects contain their defaults
            required |= {name for name, member in schema.get("properties", {}).items() if "default" in member}
        members = [
            f"{name if name.isidentifier() else json.dumps(name)}{'?' * (name not in required)}: {self.of(member, given)}"
            for name, member in schema.get("properties", {}).items()
        ]
        rest = schema.get("additionalProperties", not members)
        if rest:
            members.append(f"[key: string]: {self.of(rest, given) if len(members) == 0 else 'any'}")
        return f"{{ {'; '.join(members)} }}"

    def _named(self, name: str, given: bool) -> str:
        key = name, given and name in self._with_defaults
        if key not in self._names:
            self._names[key] = made = self.free(f"{name}Given" if key[1] else name)
            schema = self._schemas[name]
            self._made[key] = ""  # reserves its place before the types that it refers to
            body = self.of(schema, key[1])
            word, equals = ("interface", "") if body.startswith("{") else ("type", "= ")
            self._made[key] = f"export {word} {made} {equals}{body}\n"
        return self._names[key]


def _with_defaults(schemas: Mapping[str, Schema]) -> set[str]:
    """Return the schemas with members that are optional when sent but always present when received.

    Schemas that refer to such a schema are included.
    """
    texts = {name: json.dumps(schema) for name, schema in schemas.items()}
    found = {name for name, text in texts.items() if '"default":' in text and OMITS not in text}
    refers = {name: {*re.findall(f'"{re.escape(REFERENCE)}([^"]+)"', text)} for name, text in texts.items()}
    while more := {name for name in refers if refers[name] & found} - found:
        found |= more
    return found
