"""Renders a document as a self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from html import escape
from importlib.resources import files
from itertools import starmap
from typing import Any, Final

from ..plugins.tools import check_type
from .document import to_text
from .schemas import REFERENCE, Schema, check_document

Part = Mapping[str, Any]

_STYLES: Final = {
    "request": ("request", "one answer"),
    "stream": ("stream", "a stream of items"),
    "channel": ("channel", "items in both directions"),
    "notification": ("notify", "no answer"),
    "publication": ("listens", "receives publications"),
    "sent": ("publishes", "publishes to subscribers"),
}
_FACTS: Final = {"running": "{} at once", "group": "one of the group {}", "durable": "durable {}"}
_NAME: Final = re.compile(r"\{\w+\}")
_CODE: Final = re.compile(r"``(.+?)``|`(.+?)`")
_BULLET: Final = re.compile(r"^[*-] +")


def page(document: Part, *, live: str | None = None) -> str:
    """Render a document as an HTML page.

    Args:
        document: A document as returned by `polybus.asyncapi.document`.
        live: Address of the bus, relative to the page, so that readers can send requests from the page. The bus must serve
            JSON-encoded UBRE over WebSocket there.

    Raises:
        TypeError: If `document` is not an AsyncAPI document, or `live` is not a string.
    """
    check_type(live, str, "live", "live='../bus'")
    check_document(document, "page")
    return _Page(document, live).write()


def policy(page: str) -> str:
    """Return the page's Content-Security-Policy.

    It allows the page's own style and script. Live pages may also open WebSocket connections to their own server.
    """
    hashes = {
        name: " ".join(f"'sha256-{_digest(text)}'" for text in re.findall(rf"<{name}{more}>(.*?)</{name}>", page, re.S))
        for name, more in (("style", ""), ("script", ' type="module"'))
    }
    connects = " connect-src 'self';" if " data-live=" in page else ""
    own = f"style-src {hashes['style']}; script-src {hashes['script']};{connects}"
    return f"default-src 'none'; {own} base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _asset(folder: str, name: str) -> str:
    return files("polybus").joinpath(folder, name).read_text(encoding="utf-8").strip()


class _Page:
    def __init__(self, document: Part, live: str | None) -> None:
        self._document = document
        self._live = live
        components: Part = document.get("components", {})
        self._schemas: dict[str, Schema] = dict(components.get("schemas", {}))
        self._messages: Part = components.get("messages", {})
        self._channels: Part = document["channels"]
        self._operations: Part = document["operations"]

    def write(self) -> str:
        info = self._document["info"]
        title = escape(info["title"])
        attributes, script = "", _asset("asyncapi", "page.js")
        if self._live is not None:
            attributes = f' data-live="{escape(self._live)}"'
            script = f"{_asset('javascript', 'polybus.js')}\n{script}"
        errors = {_name_of(message["payload"]["allOf"][0]) for message in self._messages.values() if _is_error(message)}
        schemas = [name for name in self._schemas if name not in errors]
        data = to_text(self._document).replace("<", "\\u003c")
        text = _asset("asyncapi", "page.html").format(
            title=title,
            version=escape(info["version"]),
            attributes=attributes,
            style=_asset("asyncapi", "page.css"),
            intro=f'<div class="intro">{_prose(info["description"])}</div>' if info.get("description") else "",
            servers=self._servers(),
            access=_ACCESS if self._live is not None else "",
            navigation=self._navigation(schemas),
            operations="\n".join(starmap(self._group, self._groups().items())) or "<p>There are no operations.</p>",
            schemas="".join(map(self._component, schemas)),
            has_schemas="" if schemas else " hidden",
            document=data,
            script=script,
        )
        return text.replace("POLICY", escape(policy(text)), 1) + "\n"

    # -- the list ----------------------------------------------------------------------------------------------------------

    def _groups(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for key, operation in self._operations.items():
            tags = operation.get("tags", [])
            groups.setdefault(tags[0]["name"] if tags else "", []).append(key)
        return dict(sorted(groups.items()))

    def _navigation(self, schemas: list[str]) -> str:
        parts = []
        for tag, keys in self._groups().items():
            links = "".join(
                f'<li><a href="#op-{escape(key)}" title="{_STYLES[self._style(key)][0]}">'
                f'<span class="dot {self._style(key)}"></span>'
                f'<span class="subject">{escape(self._operations[key]["title"])}</span></a></li>'
                for key in keys
            )
            parts.append(f"<div data-group><h2>{escape(tag or 'Operations')}</h2><ul>{links}</ul></div>")
        if schemas:
            links = "".join(
                f'<li><a href="#type-{escape(name)}"><span class="subject">{escape(name)}</span></a></li>' for name in schemas
            )
            parts.append(f"<div data-group><h2>Types</h2><ul>{links}</ul></div>")
        return "".join(parts)

    def _style(self, key: str) -> str:
        operation = self._operations[key]
        return "sent" if operation["action"] == "send" else str(operation["x-polybus-style"])

    def _servers(self) -> str:
        table = _table(
            (escape(name), f"<code>{escape(_url(server))}</code>{_note(server.get('description', ''))}")
            for name, server in self._document.get("servers", {}).items()
        )
        return f'<h2>Servers</h2><div class="scroll">{table}</div>' if table else ""

    # -- operations --------------------------------------------------------------------------------------------------------

    def _group(self, tag: str, keys: list[str]) -> str:
        return f"<section data-group><h2>{escape(tag or 'Operations')}</h2>{''.join(map(self._operation, keys))}</section>"

    def _operation(self, key: str) -> str:
        operation, style = self._operations[key], self._style(key)
        word, meaning = _STYLES[style]
        subject = operation["title"]
        summary = operation.get("summary", "")
        facts = [
            text.format(operation[f"x-polybus-{name}"]) for name, text in _FACTS.items() if f"x-polybus-{name}" in operation
        ]
        channel = self._channels[_last(operation["channel"])]
        search = " ".join([subject, word, summary, operation.get("description", ""), *self._names_in(operation)]).lower()
        parts = [
            f'<article id="op-{escape(key)}" data-search="{escape(search)}"><header>'
            f'<span class="badge {style}" title="{meaning}">{word}</span>'
            f'<h3><a class="subject" href="#op-{escape(key)}">{escape(subject)}</a></h3>'
            f'<span class="fact">{escape(", ".join(facts))}</span></header>',
            f'<p class="summary">{_inline(summary)}</p>' if summary else "",
            f'<div class="text">{_prose(operation["description"])}</div>' if operation.get("description") else "",
            self._parameters(channel),
            self._bodies(operation, style),
            self._errors(operation),
            self._wire(operation),
            self._attempt(operation, channel, style),
            "</article>",
        ]
        return "".join(parts)

    def _names_in(self, operation: Part) -> Iterable[str]:
        reply = operation.get("reply", {})
        for reference in [*operation["messages"], *reply.get("messages", [])]:
            message = self._messages[_last(reference)]
            if not _is_error(message):
                yield message["title"]
        yield from reply.get("x-polybus-errors", {})

    @staticmethod
    def _parameters(channel: Part) -> str:
        table = _table(
            (f"{{{escape(name)}}}", _inline(parameter["description"]))
            for name, parameter in channel.get("parameters", {}).items()
        )
        return f"<h4>In the subject</h4>{table}" if table else ""

    def _bodies(self, operation: Part, style: str) -> str:
        words = {"channel": "Incoming items", "publication": "Receives", "sent": "Sends"}.get(style, "Body")
        asked = self._body(words, operation["messages"][0])
        if "reply" not in operation:
            return asked
        given = self._body("Answer" if style == "request" else "Items", operation["reply"]["messages"][0])
        return f'<div class="columns"><div>{asked}</div><div>{given}</div></div>'

    def _body(self, words: str, reference: Part) -> str:
        message = self._messages[_last(reference)]
        schema: Schema = message["payload"]
        if schema == {"type": "null"}:
            return f'<h4>{words}</h4><p class="none">nothing</p>'
        fields = self._fields(self._schemas.get(_name_of(schema), {}))
        return f'<h4>{words}</h4><div class="type">{self._type(schema)}</div>{fields}'

    def _errors(self, operation: Part) -> str:
        reply = operation.get("reply")
        if reply is None:
            return ""
        named: Part = reply.get("x-polybus-errors", {})
        messages = [self._messages[_last(one)] for one in reply["messages"]]
        codes = [message["name"] for message in messages if _is_error(message)]
        rows = [self._error(code, named[code]) for code in codes if code in named]
        others = "".join(self._error(code, "") for code in codes if code not in named)
        text = f'<h4>Errors</h4><table class="errors">{"".join(rows)}</table>' if rows else ""
        return f'{text}<details><summary>Errors of every request</summary><table class="errors">{others}</table></details>'

    def _error(self, code: str, said: str) -> str:
        message = self._messages[f"error.{code}"]
        return f"<tr><td>{escape(message['title'])}{_note(code)}</td><td>{_inline(said or message['summary'])}</td></tr>"

    @staticmethod
    def _wire(operation: Part) -> str:
        rows: list[tuple[str, str]] = []
        for name, binding in operation.get("bindings", {}).items():
            facts = {key: value for key, value in binding.items() if key != "bindingVersion"}
            shown = [f"{escape(key)} <code>{escape(str(value))}</code>" for key, value in facts.items()]
            if shown:
                rows.append((escape(name.removeprefix("x-")), ", ".join(shown)))
        return f"<details><summary>Bindings</summary>{_table(rows)}</details>" if rows else ""

    def _attempt(self, operation: Part, channel: Part, style: str) -> str:
        if self._live is None or style == "channel" or not isinstance(channel.get("x-polybus-subject", ""), str):
            return ""
        if style == "sent":
            return _LISTENING.format(subject=escape(_NAME.sub("*", operation["title"])))
        address = channel["address"]
        inputs = "".join(
            f'<label>{{{escape(name)}}}<input name="in-{escape(name)}" required autocomplete="off"></label>'
            for name in channel.get("parameters", {})
        )
        message = self._messages[_last(operation["messages"][0])]
        body = ""
        if message["payload"] != {"type": "null"}:
            shown = json.dumps(message.get("examples", [{"payload": None}])[0]["payload"], indent=2, ensure_ascii=False)
            rows = min(12, shown.count("\n") + 1)
            label = f"JSON body for {escape(address)}"
            body = f'<textarea rows="{rows}" spellcheck="false" aria-label="{label}">{escape(shown)}</textarea>'
        stop = '<button type="button" class="plain stop" hidden>Stop</button>' if style == "stream" else ""
        verb = {"publication": "Publish", "notification": "Notify", "stream": "Open"}.get(style, "Send")
        return (
            f'<form class="try" data-style="{style}" data-subject="{escape(address)}"><h4>Try it</h4>{inputs}{body}'
            f'<button type="submit">{verb}</button>{stop}{_ANSWER}</form>'
        )

    # -- types -------------------------------------------------------------------------------------------------------------

    def _component(self, name: str) -> str:
        schema = self._schemas[name]
        search = " ".join([name, str(schema.get("description", "")), *schema.get("properties", {})]).lower()
        said = f'<div class="text">{_prose(schema["description"])}</div>' if schema.get("description") else ""
        fields = self._fields(schema) or f'<div class="type">{self._type({**schema, "title": ""})}</div>'
        return (
            f'<article id="type-{escape(name)}" data-search="{escape(search)}"><header><h3><a href="#type-{escape(name)}">'
            f"{escape(name)}</a></h3></header>{said}{fields}</article>"
        )

    def _fields(self, schema: Part) -> str:
        items = schema.get("items")
        if isinstance(items, list):
            return _table((f"[{place}]", self._type(one)) for place, one in enumerate(items))
        marks = dict.fromkeys(schema.get("required", ()), "<sup title=required>*</sup>")
        table = _table(
            (escape(name) + marks.get(name, ""), self._type(one) + self._remarks(one))
            for name, one in schema.get("properties", {}).items()
        )
        return f'<div class="scroll">{table}</div>' if table else ""

    @staticmethod
    def _remarks(schema: Any) -> str:
        if not isinstance(schema, dict):
            return ""
        remarks = []
        if schema.get("description"):
            remarks.append(_inline(schema["description"]))
        if "default" in schema:
            remarks.append(f"default <code>{escape(json.dumps(schema['default'], ensure_ascii=False))}</code>")
        limits = [f"{words} {escape(str(schema[key]))}" for key, words in _LIMITS.items() if key in schema]
        return "".join(f'<span class="note">{one}</span>' for one in (*remarks, *([", ".join(limits)] if limits else [])))

    def _type(self, schema: Any) -> str:
        if not isinstance(schema, dict) or not schema:
            return "anything"
        if "$ref" in schema:
            name = _name_of(schema)
            return f'<a href="#type-{escape(name)}">{escape(name)}</a>'
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema:
                return (" and " if key == "allOf" else " or ").join(map(self._type, schema[key]))
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return " or ".join(f"<code>{escape(json.dumps(value, ensure_ascii=False))}</code>" for value in values)
        kind = schema.get("type")
        if isinstance(kind, list):
            return " or ".join(map(escape, kind))
        if kind == "array":
            items = schema.get("items")
            if isinstance(items, list):
                return f"[{', '.join(map(self._type, items))}]"
            return f"list of {self._type(items)}" if items else "list"
        if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
            return f"object with values of {self._type(schema['additionalProperties'])}"
        if schema.get("contentEncoding") == "base64" or schema.get("format") == "binary":
            return "bytes"
        form = schema.get("format")
        return escape(str(kind or schema.get("description", "anything"))) + (f", {escape(form)}" if form else "")


_LIMITS: Final = {
    "minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than", "exclusiveMaximum": "less than",
    "minLength": "minimum length", "maxLength": "maximum length", "pattern": "matches",
    "minItems": "minimum number of items", "maxItems": "maximum number of items",
}  # fmt: skip


def _last(reference: Part) -> str:
    return str(reference["$ref"]).rpartition("/")[2]


def _is_error(message: Part) -> bool:
    return "x-polybus-code" in message


def _name_of(schema: Part) -> str:
    return str(schema.get("$ref", "")).removeprefix(REFERENCE)


def _url(server: Part) -> str:
    scheme = f"{server['x-polybus-protocol']}+{server['x-polybus-transport']}"
    return f"{scheme}://{server['host']}{server.get('pathname', '')}"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    """Return a table of names and values, which are HTML, or an empty string without rows."""
    text = "".join(f'<tr><td class="name">{name}</td><td>{value}</td></tr>' for name, value in rows)
    return f"<table>{text}</table>" if text else ""


def _note(text: str) -> str:
    return f'<span class="note">{escape(text)}</span>' if text else ""


def _inline(text: str) -> str:
    parts = []
    end = 0
    for found in _CODE.finditer(text):
        parts += [escape(text[end : found.start()]), f"<code>{escape(found[1] or found[2])}</code>"]
        end = found.end()
    return "".join((*parts, escape(text[end:])))


def _prose(text: str) -> str:
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.splitlines()
        if all(_BULLET.match(line) or line.startswith(" ") for line in lines) and _BULLET.match(lines[0]):
            items = re.split(r"\n(?=[*-] )", block)
            blocks.append(
                "<ul>" + "".join(f"<li>{_inline(' '.join(_BULLET.sub('', one).split()))}</li>" for one in items) + "</ul>"
            )
        else:
            blocks.append(f"<p>{_inline(' '.join(block.split()))}</p>")
    return "".join(blocks)


_ACCESS: Final = """<details class="access"><summary>Requests from this page</summary>
<p class="fact">They use this server's bus, with your cookies and permissions, like those of any other client.</p>
<div class="try"><label>Token, if the server requires one (not stored after you leave the page)
<input id="token" type="password" autocomplete="off"></label></div></details>"""

_ANSWER: Final = '<output class="answer" aria-live="polite"></output>'
_LISTENING: Final = (
    '<form class="try" data-style="listening" data-subject="{subject}"><h4>Try it</h4><button type="submit">Listen</button>'
    f'<button type="button" class="plain stop" hidden>Stop</button>{_ANSWER}</form>'
)
