"""The shapes of JSON frames, one for each verb; the name of the class without "Shape" is the verb.

Nothing is checked yet, so that a wrong type gets an error that says which rule it breaks. A body is cut out as bytes.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw, Struct, UnsetType

from .members import ChannelMembers


class SubscribeShape(Struct, gc=False):
    subscribe: Any


class UnsubscribeShape(Struct, gc=False):
    unsubscribe: Any


class PublishShape(Struct, gc=False):
    publish: Any
    body: Raw = Raw()
    headers: Any = None


class RequestShape(Struct, gc=False):
    request: Any
    id: Any = UNSET
    body: Raw = Raw()
    ttl: Any = None
    headers: Any = None


class SuccessShape(Struct, gc=False):
    success: Any
    body: Raw = Raw()
    headers: Any = None


class FailShape(ChannelMembers, gc=False, kw_only=True):
    fail: Any
    body: Any = None


class CancelShape(Struct, gc=False):
    cancel: Any


class OpenShape(ChannelMembers, gc=False, kw_only=True):
    open: Any
    subject: Any = None
    body: Raw = Raw()
    data: bytes | UnsetType = UNSET


class ItemShape(Struct, gc=False):
    item: Any
    body: Raw = Raw()
    data: bytes | UnsetType = UNSET


class CreditShape(ChannelMembers, gc=False, kw_only=True):
    credit: Any


class EndShape(ChannelMembers, gc=False, kw_only=True):
    end: Any
