"""The contract suite that plugins get, on the throw-away protocol: what is proven here needs nothing of polybus's own."""

from polybus.testing import protocol_suite

from .numbered import Numbered

TestNumbered = protocol_suite(
    Numbered,
    skip={
        "test_a_relay_forwards_publications_once_to_others_and_not_back": (
            "a relay writes into a header where a publication has been, and this wire has none"
        )
    },
)
