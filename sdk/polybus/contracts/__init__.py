"""Contracts: a `typing.Protocol` class names the methods that one program implements and others call.

``bus.client(Users, "user")`` gives an object with its methods, ``bus.implement(Users, UsersInDatabase(db), "user")`` answers
them. `method` and `notify` say of one method what its signature does not.
"""

from .marks import method, notify

__all__ = ["method", "notify"]
