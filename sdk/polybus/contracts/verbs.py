"""The verbs of contracts, whose modules are loaded with the first one: few programs have contracts, and all import polybus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .._core.handlers.handler import Handler
    from .client import ContractAsker

P = TypeVar("P")


def client_of(asker: ContractAsker, contract: TypeForm[P], prefix: str) -> P:
    """Make the client that asks by the verbs of a bus, a peer or a user.

    Raises:
        TypeError: It is no contract, or one for threads.
    """
    from .client import client_of as make

    return make(asker, contract, prefix)


def handlers_of(contract: Any, implementation: object, prefix: str) -> list[Handler]:
    """Make the handlers of a contract's methods.

    Raises:
        TypeError: It is no contract, or the implementation is none of it.
    """
    from .implementation import handlers_of as make

    return make(contract, implementation, prefix)
