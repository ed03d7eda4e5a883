"""UMessage's specification and its binding to Zenoh, as tables.

The rows say what the feature files of eclipse-uprotocol/up-spec (basics/, features/, revisions of 2025) and the examples
of up-l1/zenoh.adoc and of the Rust transport say; the bytes of whole messages are those that up-python's classes have read.
"""

ADDRESSES = [  # authority, entity, version, resource, text
    ("", 0x1, 0x1, 0xA1FB, "up:/1/1/A1FB"),
    ("my_vin", 0x10000001, 0x2, 0x1A, "up://my_vin/10000001/2/1A"),
    ("*", 0x101, 0xA0, 0xA1FB, "up://*/101/A0/A1FB"),
    ("mcu1", 0xFFFF, 0x1, 0xA1FB, "up://mcu1/FFFF/1/A1FB"),
    ("vcu.my_vin", 0x1A40101, 0x1, 0x8000, "up://vcu.my_vin/1A40101/1/8000"),
    ("vcu.my_vin", 0xFFFF0101, 0x1, 0xA1FB, "up://vcu.my_vin/FFFF0101/1/A1FB"),
    ("vcu.my_vin", 0xFFFFFFFF, 0x1, 0xA1FB, "up://vcu.my_vin/FFFFFFFF/1/A1FB"),
    ("vcu.my_vin", 0x101, 0x0, 0xA1FB, "up://vcu.my_vin/101/0/A1FB"),
    ("vcu.my_vin", 0x101, 0xFF, 0xA1FB, "up://vcu.my_vin/101/FF/A1FB"),
    ("vcu.my_vin", 0x101, 0x1, 0x0, "up://vcu.my_vin/101/1/0"),
    ("vcu.my_vin", 0x101, 0x1, 0xFFFF, "up://vcu.my_vin/101/1/FFFF"),
    # Of the rules in prose: an IPv4 address, an IPv6 literal.
    ("192.168.1.7", 0x101, 0x1, 0x1, "up://192.168.1.7/101/1/1"),
    ("[2001::7]", 0x101, 0x1, 0x1, "up://[2001::7]/101/1/1"),
]
NO_ADDRESSES = [
    "",
    "  ",
    "$$",
    "up:",
    "up:/",
    "up://",
    "/",
    "//",
    "//vcu.my_vin",
    "//VCU",
    "//VCU.my_vin/1/1/A1FB",
    "////1/A1FB",
    "/////A1FB",
    "//vcu.my_vin//1/A1FB",
    "//vcu.my_vin/101//A1FB",
    "//vcu.my_vin/101/1/",
    "up://vcu.my_vin/101/1/A/unexpected",
    "xy://vcu.my_vin/101/1/A",
    "xy://vcu.my_vin/101/1/A1FB",
    'up://""/101/1/A1FB',
    "up://vcu#my-vin/101/1/A1FB",
    "up://vcu%my-vin/101/1/A1FB",
    "//vcu.my_vin/101/1/A?foo=bar",
    "//vcu.my_vin/101/1/A#foo",
    "//vcu.my-vin:1516/101/1/A",
    "//user:pwd@vcu.my-vin/101/1/A",
    "//reg_based:1516/101/1/A",
    'up://"vcu.my-vin"/0/1/A1FB',
    "up://vcu.my-vin/1G1/1/A1FB",
    "up:/1G1/1/A1FB",
    "/123456789/1/A1FB",
    "up:/101/G/A1FB",
    "//vcu.my-vin/101/123/A1FB",
    "/101/123/A1FB",
    "/101/1/G1FB",
    "up://vcu.my-vin/101/1/12345",
    "//" + "a" * 129 + "/101/1/A",
    "//[2001::7/101/1/A",
    "//[20x1::7]/101/1/A",
    "//2001::7/101/1/A",
]
ADDRESS_BYTES = [  # authority, type, instance, version, resource, message UUri
    ("", 0x1, 0x1, 0x1, 0xA1FB, "0a0010818004180120fbc302"),
    ("my_vin", 0x1, 0x1000, 0x2, 0x1A, "0a066d795f76696e1081808080011802201a"),
    ("*", 0x101, 0x1, 0xA0, 0xA1FB, "0a012a1081820418a00120fbc302"),
    ("mcu1", 0xFFFF, 0x1, 0x1, 0xA1FB, "0a046d63753110ffff07180120fbc302"),
    ("vcu.my_vin", 0x101, 0x1A4, 0x1, 0x8000, "0a0a7663752e6d795f76696e108182900d180120808002"),
    ("vcu.my_vin", 0x101, 0xFFFF, 0x1, 0xA1FB, "0a0a7663752e6d795f76696e108182fcff0f180120fbc302"),
    ("vcu.my_vin", 0xFFFF, 0xFFFF, 0x1, 0xA1FB, "0a0a7663752e6d795f76696e10ffffffff0f180120fbc302"),
    ("vcu.my_vin", 0x101, 0x1, 0x0, 0xA1FB, "0a0a7663752e6d795f76696e10818204180020fbc302"),
    ("vcu.my_vin", 0x101, 0x1, 0xFF, 0xA1FB, "0a0a7663752e6d795f76696e1081820418ff0120fbc302"),
    ("vcu.my_vin", 0x101, 0x1, 0x1, 0x0, "0a0a7663752e6d795f76696e1081820418012000"),
    ("vcu.my_vin", 0x101, 0x1, 0x1, 0xFFFF, "0a0a7663752e6d795f76696e10818204180120ffff03"),
]
IDS = [(0x0000000000017000, 0x8010101010101A1A, "00000000-0001-7000-8010-101010101a1a")]
NO_IDS = [
    *(f"00000000-0001-{version:x}000-8000-0000000000ab" for version in range(16) if version != 7),
    *(f"00000000-0001-7000-{variant}000-0000000000ab" for variant in "04c"),
]
ID_BYTES = [
    (0x0000000000017000, 0x8010101010101A1A, "090070010000000000111a1a101010101080"),
    (0xFFFFFFFFFFFF7000, 0x8010FFAABB997700, "090070ffffffffffff11007799bbaaff1080"),
]
SEGMENTS = [  # own host "local_authority"
    ("//1.2.3.4/1234/2/8001", "1.2.3.4/1234/0/2/8001"),
    ("/1234/2/8001", "local_authority/1234/0/2/8001"),
    ("//1.2.3.4/12345678/2/8001", "1.2.3.4/5678/1234/2/8001"),
    ("//1.2.3.4/FFFF5678/2/8001", "1.2.3.4/5678/*/2/8001"),
    ("//*/FFFFFFFF/FF/FFFF", "*/*/*/*/*"),
]
KEYS = [  # own host "device1"
    ("/10AB/3/80CD", None, "up/device1/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
    ("//device1/10AB/3/80CD", "//device2/300EF/4/0", "up/device1/10AB/0/3/80CD/device2/EF/3/4/0"),
    ("/403AB/3/0", "//device2/CD/4/B", "up/device1/3AB/4/3/0/device2/CD/0/4/B"),
    ("//device2/10AB/3/80CD", None, "up/device2/10AB/0/3/80CD/{}/{}/{}/{}/{}"),
    ("//*/FFFFFFFF/FF/FFFF", "/300EF/4/0", "up/*/*/*/*/*/device1/EF/3/4/0"),
    ("//*/FFFF05A1/2/FFFF", "//device1/300EF/4/B18", "up/*/5A1/*/2/*/device1/EF/3/4/B18"),
    ("//*/FFFFFFFF/FF/FFFF", "//device1/FFFFFFFF/FF/FFFF", "up/*/*/*/*/*/device1/*/*/*/*"),
]
PUBLICATION = bytes.fromhex(
    "0a310a120900707b68e5cf8b01111a1a10101010108010011a120a076465766963653110ab21180320cd81022803308827600712046f70656e"
)
"""From //device1/10AB/3/80CD, CS2, ttl 5000, text ``open``."""
REQUEST = bytes.fromhex(
    "0a43"
    "0a120901707b68e5cf8b01111a1a10101010108010021a0f0a076465766963653110ab8710180322100a076465766963653210cd011804200b"
    "280530d00f5201746003"
    "12087b2270223a35307d"
)
"""From //device1/403AB/3/0 to //device2/CD/4/B, CS4, ttl 2000, token ``t``, JSON ``{"p":50}``."""
ID = "018bcfe5-687b-700{}-8010-101010101a1a"
