"""The shapes of JSON frames, one for each verb; the name of the class in lower case is the verb.

Nothing is checked yet, so that a wrong type gets an error that says which rule it breaks. A body is cut out as bytes.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from .members import Extras

__all__ = ["Cancel", "Credit", "End", "Fail", "Item", "Open", "Publish", "Request", "Subscribe", "Success", "Unsubscribe"]


class Subscribe(Struct, gc=False):
    subscribe: Any


class Unsubscribe(Struct, gc=False):
    unsubscribe: Any


class Publish(Struct, gc=False):
    publish: Any
    body: Raw = Raw()
    headers: Any = None


class Request(Struct, gc=False):
    request: Any
    id: Any = UNSET
    body: Raw = Raw()
    ttl: Any = None
    headers: Any = None


class Success(Struct, gc=False):
    success: Any
    body: Raw = Raw()
    headers: Any = None


class Fail(Extras, gc=False, kw_only=True):
    fail: Any
    body: Any = None


class Cancel(Struct, gc=False):
    cancel: Any


class Open(Extras, gc=False, kw_only=True):
    open: Any
    subject: Any = None
    body: Raw = Raw()
    data: bytes | UnsetType = UNSET


class Item(Struct, gc=False):
    item: Any
    body: Raw = Raw()
    data: bytes | UnsetType = UNSET


class Credit(Extras, gc=False, kw_only=True):
    credit: Any


class End(Extras, gc=False, kw_only=True):
    end: Any
