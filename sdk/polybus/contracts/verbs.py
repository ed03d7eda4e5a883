"""Functions for contracts. They import their modules on first use, because few programs that import polybus need them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .._core.handlers.handler import Handler
    from .client import ContractAsker

P = TypeVar("P")


def client_of(asker: ContractAsker, contract: TypeForm[P], prefix: str) -> P:
    """Create a client that sends its calls with a bus, a peer or a user.

    Raises:
        TypeError: The class is not a contract, or is a contract for threads.
    """
    from .client import client_of as make

    return make(asker, contract, prefix)


def handlers_of(contract: Any, implementation: object, prefix: str) -> list[Handler]:
    """Return handlers for a contract's methods.

    Raises:
        TypeError: The class is not a contract, or the implementation does not match it.
    """
    from .implementation import handlers_of as make

    return make(contract, implementation, prefix)
