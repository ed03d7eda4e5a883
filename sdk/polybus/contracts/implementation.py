"""Checks the methods of an object that implements a contract, and turns them into handlers."""

from __future__ import annotations

import inspect
from typing import Any

from msgspec.structs import replace

from .._core.handlers.handler import Handler, check_body, check_result, plan, read_as
from .._core.handlers.signature import Signature, read
from .._util.class_shapes import open_variable
from .._validation import shown
from ..subjects import Subject
from . import Marks
from .contract import ContractMethod, ContractPlan, is_protocol


def handlers_of(contract: Any, implementation: object, prefix: str) -> list[Handler]:
    """Return handlers for a contract's methods.

    Raises:
        TypeError: The class is not a contract, or the implementation does not match it. The error text names the class and the
            method, and says what to write.
    """
    if is_protocol(implementation) and not is_protocol(contract):
        name = getattr(implementation, "__name__", "Users")
        raise TypeError(f"{shown(contract)} is not a contract: {name} is one, and comes first: bus.implement({name}, ...)")
    read_contract = ContractPlan.of(contract)
    if implementation is None:
        raise TypeError(f"None does not implement {read_contract.name}: pass an object with its methods")
    if isinstance(implementation, type):
        name = implementation.__name__
        raise TypeError(f"{name} is a class: pass an object, bus.implement({read_contract.name}, {name}(), ...)")
    return [
        _handler(read_contract, method, subject, implementation) for subject, method in read_contract.subjects(prefix).items()
    ]


def _handler(contract: ContractPlan, method: ContractMethod, subject: str | int, implementation: object) -> Handler:
    name = f"{type(implementation).__name__}.{method.attribute}"
    function = getattr(implementation, method.attribute, None)
    wanted = _wanted(contract, method)
    if function is None:
        raise TypeError(
            f"{type(implementation).__name__} has no method {method.attribute!r} of {contract.name}: write {wanted}"
        )
    if not callable(function):
        raise TypeError(f"{name} is {shown(function)}, and {method.name} is a method: write {wanted}")
    if getattr(function, "__func__", None) is method.function:
        raise TypeError(f"{name} is inherited from the contract, where it does nothing: write {wanted}")
    if Marks.of(function) not in (Marks(), Marks.of(method.function)):
        raise TypeError(f"{name} has its own @method or @notify: move it to {method.name}")
    try:
        read_signature = read(function)
        hints = {of: hint for of, hint in read_signature.hints.items() if open_variable(hint) is None}
        signature = replace(read_signature, hints=hints)  # the contract supplies types that it leaves open
        named = plan(subject, signature).body_name
    except TypeError as error:
        raise TypeError(f"{error}; write {wanted}, for {method.name}") from error
    _check_style(method, signature, contract.blocking, wanted)
    parameter = method.parameter
    if parameter is None and named is not None:
        own = next(one for one in signature.parameters if one.name == named)
        if own.default is own.empty:
            raise TypeError(
                f"{signature.name} takes {named!r}, and {method.name} takes nothing: leave it out, or give it a default"
            )
    if parameter is not None:
        if named is None:
            raise TypeError(f"{signature.name} takes no body, and {method.name} takes {parameter.name!r}: write {wanted}")
        own = next(one for one in signature.parameters if one.name == named)
        if parameter.default is not parameter.empty and own.default is own.empty:
            raise TypeError(f"{signature.name}: {named!r} has no default, but it has one in {method.name}: write {wanted}")
        check_body(signature.name, named, hints.get(named, method.takes), method.takes, method.name)
        hints[named] = read_as(hints.get(named), method.takes)
    check_result(signature.name, hints.get("return", Any), method.returns, method.name)
    return plan(subject, replace(signature, hints=hints, description=method.text), Subject(subject, Any, method.returns))


def _check_style(method: ContractMethod, signature: Signature, blocking: bool, wanted: str) -> None:
    found, name = signature.style, signature.name
    if found == "channel":
        raise TypeError(f"{name} takes a Channel, and {method.name} has none: write {wanted}")
    if method.style == "stream":
        if found != "stream":
            raise TypeError(f"{name} gives one answer, and {method.name} is a stream: write {wanted}")
    elif found == "stream":
        raise TypeError(f"{name} is a stream, and {method.name} gives one answer: write {wanted}")
    elif blocking and found == "async":
        raise TypeError(f"{name} is async, and {method.name} is a plain `def`: write {wanted}, it runs in a thread")
    elif not blocking and found != "async" and not inspect.iscoroutinefunction(inspect.unwrap(signature.function)):
        raise TypeError(f"{name} is a plain `def`, and {method.name} is async: write {wanted}")


def _wanted(contract: ContractPlan, method: ContractMethod) -> str:
    """Return, for error texts, the signature that an implementation of a method needs."""
    yields = method.style == "stream"
    written = "async def" if yields or not contract.blocking else "def"
    parameters = str(method.signature.replace(return_annotation=method.signature.empty))[1:-1]
    self_too = f"self, {parameters}" if parameters else "self"
    return f"`{written} {method.attribute}({self_too})`{' with `yield`' if yields else ''}"
