"""Log lines of polybus, read from its source: logger, level, text and fields of each."""

import ast
import functools
import re
from collections.abc import Iterator

from attrs import frozen

from .sources import PACKAGE, SOURCES

OF_OTHERS = ("cli", "demo", "testing")
"""Rooms of commands and tests, which no service runs."""

_LEVELS = {"debug": "DEBUG", "info": "INFO", "warning": "WARNING", "error": "ERROR", "exception": "ERROR"}
_PLACE = re.compile(r"%(?:\.\d+)?[sdrgf]")
_PEER = {"peer", "address", "protocol"}
_MESSAGE = {*_PEER, "subject", "request_id"}
FIELDS = {"message": _MESSAGE, "publication": _MESSAGE - {"request_id"}}
"""Words for several fields in docs/reference/logs.md."""
_MADE_ELSEWHERE = {
    "self.log_fields()": _PEER,
    "link.log_fields()": _PEER,
    "link.log_fields(message)": {*_PEER, "subject"},
    "self.fields": {"address", "protocol"},
    "self._log.fields": {"address", "protocol"},
    "self._fields": {"worker", "pid"},
    "_of_handshake(handshake)": {"address", "protocol"},
}
"""Fields of those that are no call of `log_fields`, by their source."""


@frozen(order=True)
class LogLine:
    logger: str
    level: str
    text: str
    fields: tuple[str, ...]

    @property
    def row(self) -> str:
        """The line of the list in docs/reference/logs.md, below its logger and level."""
        left = {*self.fields}
        shown = [name for name, fields in FIELDS.items() if fields <= left][:1]
        shown += sorted(left - FIELDS.get(shown[0], set()) if shown else left)
        return f"{self.logger}, {self.level}: * {self.text}{' · ' * bool(shown)}{', '.join(shown)}"


@functools.cache
def lines() -> tuple[LogLine, ...]:
    found = set[LogLine]()
    for path in SOURCES:
        if path.relative_to(PACKAGE).parts[0] not in OF_OTHERS and path.stem != "logs":  # writes what others say
            found.update(lines_of(path.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def lines_of(source: str) -> Iterator[LogLine]:
    if "logger" not in source:
        return
    tree = ast.parse(source)
    name = re.search(r'^logger\b.* = logging\.getLogger\("([\w.]+)"\)', source, re.M)
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            verb = node.func.attr
            if verb in {*_LEVELS, "log"} and ast.unparse(node.func.value) == "logger":
                text, level = (node.args[0], _LEVELS[verb]) if verb != "log" else (node.args[1], "as told")
            elif verb == "warn" and node.args and ast.unparse(node.args[0]) == "logger":
                text = node.args[1]
                told = ast.unparse(given["level"]).removeprefix("logging.") if "level" in given else "WARNING"
                level = "ERROR" if "error" in given else told
            else:
                continue
            assert name is not None, source[:80]
            for one in texts_of(text, function):
                yield LogLine(name[1], level, one, tuple(sorted(fields_of(given.get("extra"), function))))


def texts_of(text: ast.expr, function: ast.AST) -> list[str]:
    """The texts of a line, with … in place of what differs; … alone where they come from elsewhere."""
    if isinstance(text, ast.Constant):
        plain = re.sub(r"\s+", " ", _PLACE.sub("…", str(text.value))).replace("|", "\\|")
        return [plain.replace("%%", "%")]
    if isinstance(text, ast.Name):
        return [one for value in assigned(text.id, function) for one in texts_of(value, function)] or ["…"]
    return ["…"]


def fields_of(extra: ast.expr | None, function: ast.AST) -> set[str]:
    if extra is None:
        return set()
    source = ast.unparse(extra)
    if source in _MADE_ELSEWHERE:
        return _MADE_ELSEWHERE[source]
    if isinstance(extra, ast.Dict):
        return {str(ast.literal_eval(key)) for key in extra.keys if key is not None}
    if isinstance(extra, ast.Name):
        return {field for value in assigned(extra.id, function) for field in fields_of(value, function)}
    assert isinstance(extra, ast.Call) and ast.unparse(extra.func) == "log_fields", source
    names = {str(keyword.arg) for keyword in extra.keywords}
    return (names - {"message"}) | (_MESSAGE if "message" in names else set()) | (_PEER if extra.args else set())


def assigned(name: str, function: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    yield node.value
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    for one, value in zip(target.elts, node.value.elts, strict=True):
                        if isinstance(one, ast.Name) and one.id == name:
                            yield value
