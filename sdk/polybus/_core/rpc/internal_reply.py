"""The reply of a request that no application has made."""

from __future__ import annotations

from typing import Any, ClassVar

from .reply import Reply


class InternalReply(Reply[Any]):
    """A reply whose failure is nobody's to await: that of a bridge, which passes it on, or of a notification."""

    __slots__ = ()
    tells_failure: ClassVar[bool] = False
