"""The protocol on a fabric (up-l1/zenoh.adoc): UMessages as samples in one of the dialects, and sessions with filters."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from attrs import frozen

from ...limits import Limits
from ...plugins import Hear, Role, Sample
from .checks import refuse
from .filters import Filters
from .names import Names
from .samples import DIALECTS, ForeignDialect
from .session import UpSession

if TYPE_CHECKING:
    from .adapter import Up


@frozen
class UpFabric:
    """Form of `up` on fabrics; implements `plugins.Fabric`."""

    adapter: Up

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> UpSession:
        """A session that hears what it has filters for."""
        adapter = self.adapter
        names = Names(adapter.names, adapter.own, adapter.other, on_fabric=True)
        filters = Filters(DIALECTS[adapter.dialect], names, hear)
        return UpSession(adapter.codec(limits), adapter, limits, random.SystemRandom() if rng is None else rng, filters)

    def sample(self, frame: bytes) -> Sample:
        """The sample of a message of this side."""
        return DIALECTS[self.adapter.dialect].sample(frame, self.adapter.own.authority)

    def sender(self, key: str) -> str:
        """The authority of the source."""
        return key.split("/", 2)[1] if "/" in key else ""

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """The message of a sample; None of one in another dialect with the same keys. May raise `RemoteProtocolError`."""
        try:
            return DIALECTS[self.adapter.dialect].frame(sample, limits.message)
        except ForeignDialect:
            return None
        except ValueError as error:
            raise refuse(f"no sample of a UMessage: {error}") from error
