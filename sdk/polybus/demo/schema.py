"""Messages between the plant's processes."""

from __future__ import annotations

from attrs import frozen

from ..subjects import Subject

SECRET = "the vault opens with 4711"
"""In the text of an exception and in a publication that the console may not see."""


@frozen
class GetLevel:
    """The console asks for a tank."""

    tank: int


@frozen
class Level:
    """Contents of a tank."""

    tank: int
    litres: float


@frozen
class SensorReading:
    """A sensor publishes it, numbered without gaps."""

    sensor: str
    number: int
    value: float


@frozen
class Tail:
    """Asks for a stream of the last readings."""

    sensor: str
    count: int


@frozen
class Flood:
    """Asks the back end to publish that much at once."""

    count: int
    size: int


@frozen
class Announcement:
    """An announcement of the back end to all."""

    text: str
    instance: str


@frozen
class SensorStatus:
    """Figures of the sensors."""

    floods: int
    last_reading: int


@frozen
class PlantCounters:
    """Counters of the back end. `instance` is another one after each start."""

    instance: str
    started: int
    cancelled: int
    readings: int
    last_reading: int
    dropped: int
    queued: int
    failures: list[str]


LEVEL = Subject("tank.level", GetLevel, Level)
FLOOD = Subject("plant.flood", Flood, int)
