"""The contract of UMessage, over the transports and the event loops (`anyio_backend`)."""

from polybus.protocols.up import Up
from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, TRIO, UVLOOP, on

# The names that the suite asks for and publishes, each with a method and a topic.
SUBJECTS = (
    """
anything chat.room double early echo endless fail fails fast grow handler headers hello here inner items lines name news
news.open news.other news.secret news.today no nobody nothing odd one open open.x outer secret secret.plan secret.x slow
square stubborn tagged take talk tell there told ttl user user.count user.get user.touch user.watch vehicle.door wait who yes
""".split()
    + [f"user.{number}" for number in range(64)]
)
NAMES = {name: (number, 0x8000 + number) for number, name in enumerate(SUBJECTS, 1)}


def up() -> Up:
    return Up(names=NAMES)


TestUpOverMemory = on(UVLOOP, protocol_suite(up))
TestUpOverWebSocket = on(TRIO, protocol_suite(up, transport="ws://127.0.0.1:0/bus"))

# On a fabric no end is told from another: whoever serves does not see who comes, goes, or is who.
ENDS_APART = """
a_link_ends_when_its_identity_expires a_peer_knows_protocol_transport_and_address
a_server_sends_requests_to_a_client_only_explicitly a_client_that_authenticate_rejects_is_unauthorized_or_forbidden
an_exception_in_authenticate_refuses_the_client authorize_decides_about_publications_and_keeps_their_order
leaving_a_bus_ends_its_requests_in_flight a_subscription_to_a_client_receives_only_its_publications
peers_of_finds_all_connections_of_one_identity messages_that_arrived_are_read_before_the_end_of_the_peer_is_raised
""".split()


def on_fabric() -> Up:
    return Up(names=NAMES, peer="//polybus/1/1")


TestUpOverZenoh = on(ASYNCIO, protocol_suite(on_fabric, transport="zenoh://127.0.0.1:0"))
for _name in ENDS_APART:
    assert hasattr(TestUpOverZenoh, f"test_{_name}")
    setattr(TestUpOverZenoh, f"test_{_name}", None)
