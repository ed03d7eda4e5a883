"""The build hook that compiles the hot modules: what it makes of each source, before mypyc sees it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import pytest

ROOT = Path(__file__).parents[3]
FUTURE = "from __future__ import annotations\n"


def loaded_hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hook = loaded_hook()
EXTENDED = hook.extended_classes(ROOT / "sdk" / "polybus")


def source(name: str) -> str:
    return (ROOT / "sdk" / name).read_text()


def rewritten(text: str, extended: set[str] | None = None) -> str:
    return str(hook.NativeSource(text, EXTENDED if extended is None else extended).text)


def run(text: str, beside: str) -> dict[str, Any]:
    """What a rewritten source defines, run as Python in the place of the module `beside`."""
    text = text.replace(hook.MYPYC_IMPORT, hook.MYPYC_IMPORT.partition(": ")[2])
    names: dict[str, Any] = {"__name__": f"{beside}_rewritten", "__package__": beside.rpartition(".")[0]}
    module = sys.modules[names["__name__"]] = ModuleType(names["__name__"])
    vars(module).update(names)
    try:
        exec(compile(text, beside, "exec"), vars(module))  # it is our own source
    finally:
        del sys.modules[names["__name__"]]
    return vars(module)


def parameters(kind: type) -> list[tuple[str, Any, bool]]:
    found = list(inspect.signature(kind).parameters.values())
    return [(one.name, one.kind, one.default is inspect.Parameter.empty) for one in found]


def head(line: str) -> str:
    """The kind and name of what is defined in a line."""
    return line.partition("(")[0].removesuffix(":")


@pytest.mark.parametrize("name", hook.MODULES)
def test_a_rewritten_module_keeps_its_lines_and_none_suspends_while_it_handles_an_exception(name: str) -> None:
    text = source(name)
    before, after = text.splitlines(), rewritten(text).splitlines()
    ast.parse("\n".join(after))
    assert len(after) - len(before) in (0, 1, 2)  # what is called behind a class that ends the file
    defined = [line for line in before if line.lstrip().startswith(("def ", "async def ", "class "))]
    assert [head(after[before.index(line)]) for line in defined] == [head(line) for line in defined]
    assert list(hook.suspensions(ast.parse(text))) == []


@pytest.mark.parametrize("name", hook.MODULES)
def test_a_class_of_attrs_takes_the_same_arguments_when_it_is_a_plain_one(name: str) -> None:
    beside = name.removesuffix(".py").replace("/", ".")
    module = importlib.import_module(beside)
    plain = run(rewritten(source(name)), beside)
    for found in hook.classes_of(ast.parse(source(name))):
        ours = vars(module)[found.name]
        if any(hook.becomes_plain(one) for one in found.decorator_list):
            theirs = plain[found.name]
            assert attrs.has(ours) and not attrs.has(theirs)
            assert parameters(theirs) == parameters(ours)
            assert theirs.__match_args__ == vars(ours)["__match_args__"]


def test_a_message_is_made_as_before() -> None:
    names = run(rewritten(source("polybus/message.py")), "polybus.message")
    message = names["Message"](names["Kind"].PUBLISH, "a", body=7, attributes={"x": 1})
    assert (message.body, message.attributes, message.headers, message.has_body) == (7, {"x": 1}, None, True)
    assert names["Kind"].__hash__ is object.__hash__


def test_what_an_application_calls_takes_anything_and_says_itself_what_is_wrong() -> None:
    text = rewritten(source("polybus/_rpc/asker.py"))
    request = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and node.name == "request" and not node.decorator_list
    )
    annotations = {ast.unparse(one.annotation) for one in request.args.args + request.args.kwonlyargs if one.annotation}
    assert annotations == {"Any"}


@pytest.mark.parametrize(
    "body",
    [
        "    try:\n        f()\n    except ValueError:\n        await g()\n        raise",
        "    try:\n        f()\n    finally:\n        await g()",
        "    async with g():\n        f()",
        "    try:\n        f()\n    except* ValueError:\n        await g()",
        "    try:\n        f()\n    finally:\n        [x async for x in g()]",
    ],
)
def test_a_module_that_suspends_while_it_handles_an_exception_is_refused(body: str, tmp_path: Path) -> None:
    for name in ("polybus/__init__.py", *hook.MODULES):
        path = tmp_path / "sdk" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"async def h():\n{body}\n")
    line = 5 if "except" in body or "finally" in body else 2
    with pytest.raises(ValueError, match=rf"body\.py, line {line} suspends"):
        hook.native_sources(tmp_path, tmp_path / "copy")


def test_a_class_with_a_base_that_is_not_compiled_is_refused(tmp_path: Path) -> None:
    for name in ("polybus/__init__.py", *hook.MODULES):
        path = tmp_path / "sdk" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{FUTURE}\n\n\nclass A:\n    pass\n\n\nclass B(A, asyncio.Protocol):\n    pass\n")
    with pytest.raises(ValueError, match=r"body\.py, line 9: a class has a base that is not compiled"):
        hook.native_sources(tmp_path, tmp_path / "copy")


def test_operators_that_a_decorator_sets_have_their_tables() -> None:
    text = rewritten(source("polybus/_rpc/reply.py"))
    reply = next(found for found in hook.classes_of(ast.parse(text)) if found.name == "Reply")
    names = {node.name for node in reply.body if isinstance(node, ast.FunctionDef)}
    assert names >= {"__bool__", "__contains__", "__getitem__"}


def test_a_second_name_of_a_method_is_given_behind_the_class() -> None:
    text = rewritten(f"{FUTURE}\n\n\nclass A:\n    def f(self) -> None: ...\n\n    g = f\n")
    assert 'setattr(A, "g", A.f)' in text
    assert "g = f" not in text


def test_the_cause_of_an_error_is_set_without_the_words_for_it() -> None:
    text = rewritten(f"{FUTURE}\n\n\ndef f(error: Exception) -> None:\n    raise ValueError('x') from error\n")
    names = run(text, "polybus.body")
    cause = KeyError()
    with pytest.raises(ValueError, match="x") as caught:
        names["f"](cause)
    assert caught.value.__cause__ is cause
    assert " from error" not in text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("class A(metaclass=M):\n    pass", "metaclass"),
        ("class A:\n    if X:\n        y = 1", "a condition in a class body"),
        ("def f() -> None:\n    raise (\n        A\n    ) from None", "a cause of more than one line"),
        ("x = 1\nclass Message:\n    pass", "is not empty"),
    ],
)
def test_what_would_be_rewritten_wrongly_is_refused(body: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        rewritten(f"{FUTURE}\n\n\n{body}\n")


def test_an_option_of_a_field_that_plain_classes_have_not_is_refused() -> None:
    with pytest.raises(ValueError, match="the field size has {'validator'}"):
        rewritten(f"{FUTURE}from attrs import define\n\n\n@define(eq=False)\nclass A:\n    size: int = field(validator=f)\n")


def test_names_of_the_modules_are_those_of_files() -> None:
    assert [name for name in hook.MODULES if not (ROOT / "sdk" / name).exists()] == []
