"""J.REP's typed values beside the standard library's JSON of the same text: ``python -m bench.values``."""

from __future__ import annotations

import datetime
import enum
import json
import time
import timeit
from collections.abc import Callable

from polybus.protocols import Jrep
from polybus.protocols.jrep import JavaTypes

_TURNS, _ROUNDS = 4000, 25


class Colour(enum.Enum):
    """An enum that Java knows too."""

    RED = "red"


def _arguments() -> list[object]:
    """Of a remote procedure: text, list, map, date and enum, some 550 characters on the wire."""
    moment = datetime.datetime(2023, 11, 14, tzinfo=datetime.UTC)
    return ["Ann Example", [1, 2, "four"], {"k": "v", "n": 5}, moment, Colour.RED]


def _cost(work: Callable[[], object]) -> float:
    """Microseconds of processor time; the best of many rounds, because others disturb."""
    return min(timeit.repeat(work, number=_TURNS, repeat=_ROUNDS, timer=time.process_time)) / _TURNS * 1e6


def main() -> None:
    types = JavaTypes()
    types.portable("com.acme.Colour")(Colour)
    values = Jrep(java=types).codec().formats[0]
    arguments = _arguments()
    data = values.encode(arguments)
    assert values.decode(data) == arguments
    plain = json.loads(data)
    ours = _cost(lambda: values.encode(arguments)), _cost(lambda: values.decode(data))
    theirs = _cost(lambda: json.dumps(plain)), _cost(lambda: json.loads(data))
    print(f"{len(data)} bytes           encode  decode   both")
    print(f"J.REP, typed      {ours[0]:6.2f}  {ours[1]:6.2f} {sum(ours):6.2f} us")
    print(f"json, untyped     {theirs[0]:6.2f}  {theirs[1]:6.2f} {sum(theirs):6.2f} us")
    print(f"ratio             {ours[0] / theirs[0]:6.2f}  {ours[1] / theirs[1]:6.2f} {sum(ours) / sum(theirs):6.2f}")


if __name__ == "__main__":
    main()
