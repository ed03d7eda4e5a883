"""Addresses of the plant's programs, for the protocol `up`: it has numbers on its wire, and every program knows all of them."""

from __future__ import annotations

from typing import Literal, TypeAlias

from ..protocols import Up

Who: TypeAlias = Literal["plant", "sensors", "console", "visitor"]

_ENTITIES: dict[Who, str] = {
    "plant": "//plant/CD/1",
    "sensors": "//sensors/1A/1",
    "console": "//console/2A/1",
    "visitor": "//visitor/2A/1",
}
_METHODS: dict[Who, str] = {
    "plant": """
        tank.level tank.paint batch.break report.slow report.last admin.open_vault plant.flood plant.announce plant.counters
        sensors.sign_on sensors.status sensors.calibrate
    """,
    "sensors": "calibrate status",
}
_TOPICS: dict[Who, str] = {
    "plant": "admin.announcement plant.announcement flood.water",
    "sensors": "reading.temperature reading.pressure",
}


def protocol_of(url: str, who: Who) -> Up | None:
    """The protocol that one of the programs gives the bus for a URL: of `up` with who it is, and the addresses; else none."""
    return Up(entity=_ENTITIES[who], names=_names()) if url.startswith("up+") else None


def _names() -> dict[str, str]:
    return {
        name: f"{_ENTITIES[who]}/{number:X}"
        for first, table in ((1, _METHODS), (0x8000, _TOPICS))
        for who, names in table.items()
        for number, name in enumerate(names.split(), first)
    }
