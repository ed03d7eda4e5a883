"""Functions for contracts that import their modules on first use: few programs have contracts, and all import polybus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .._core.handlers.handler import Handler
    from .client import ContractAsker

P = TypeVar("P")


def client_of(asker: ContractAsker, contract: TypeForm[P], prefix: str) -> P:
    """Client that calls by a bus, a peer or a user.

    Raises:
        TypeError: Not a contract, or one for threads.
    """
    from .client import client_of as make

    return make(asker, contract, prefix)


def handlers_of(contract: Any, implementation: object, prefix: str) -> list[Handler]:
    """Handlers for a contract's methods.

    Raises:
        TypeError: Not a contract, or the implementation does not fit.
    """
    from .implementation import handlers_of as make

    return make(contract, implementation, prefix)
