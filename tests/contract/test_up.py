"""The contract of UMessage, over the transports and the event loops (`anyio_backend`)."""

from polybus.protocols.up import Up
from polybus.testing import protocol_suite
from tests.loops import ASYNCIO, TRIO, UVLOOP, on
from tests.shares import classes_of, share_out

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


TestUpOverMemory = on(ASYNCIO, protocol_suite(up))
TestUpOverTcp = on(UVLOOP, protocol_suite(up, transport="tcp"))
TestUpOverWebSocket = on(TRIO, protocol_suite(up, transport="ws://127.0.0.1:0/bus"))

share_out(classes_of(globals()))
