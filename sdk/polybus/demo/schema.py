"""Messages between the plant's processes."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..subjects import Subject

SECRET = "the vault opens with 4711"
"""In the text of an exception and in a publication that the console may not see."""


@frozen
class GetLevel:
    tank: int


@frozen
class Level:
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
    sensor: str
    count: int


@frozen
class Flood:
    count: int
    size: int


@frozen
class Announcement:
    text: str
    instance: str


@frozen
class SensorStatus:
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


@frozen
class Announced:
    """A publication of the crew: the worker at which it was published, and its number there."""

    publisher: int
    number: int


@frozen
class Question:
    """Something that a user is to be asked."""

    user: str
    subject: str
    body: Any = None
