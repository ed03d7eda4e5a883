"""The contract suite that plugins get, on the throw-away protocols."""

from __future__ import annotations

from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, TRIO, UVLOOP, on

from .by_subject import BySubject
from .expiring import Expiring
from .numbered import Numbered
from .verbose import Verbose

TestNumbered = on(
    ASYNCIO,
    protocol_suite(
        Numbered,
        skip={
            "test_a_relay_passes_publications_on_to_others_once_and_not_back": (
                "a relay writes into a header where a publication has been, and this wire has none"
            )
        },
    ),
)
TestBySubject = on(
    TRIO,
    protocol_suite(
        BySubject,
        skip={
            "test_authorize_is_asked_for_notify_stream_and_channel": (
                "on this wire a notification is a publication too, so that authorize is asked for both"
            )
        },
    ),
)
TestVerbose = on(UVLOOP, protocol_suite(Verbose))
TestExpiring = on(ASYNCIO, protocol_suite(Expiring))
