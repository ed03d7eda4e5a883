"""Wrong arguments of `polybus.testing`: the error names the argument, what it was and what it must be."""

import math
from typing import Any

import pytest

from polybus.testing import FaultRates, Faults, NatsEngine, World, cluster, simulated


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"drop": 2}, ValueError, "drop=2 must be a number from 0 to 1"),
        ({"drop": "0.1"}, TypeError, "drop='0.1' must be a number, not str"),
        ({"duplicate": math.nan}, ValueError, "duplicate=nan must be a number from 0 to 1"),
        ({"delay": math.inf}, ValueError, "delay=inf must be a number from 0"),
        ({"delay": None}, TypeError, "delay=None must be a number"),
        ({"cut_after": 0}, ValueError, "cut_after=0 must be at least 1"),
        ({"cut_after": 1.5}, TypeError, "cut_after=1.5 must be an integer"),
    ],
)
def test_faults_name_the_number_that_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        Faults(**given)


@pytest.mark.parametrize("name", ["delay", "cut", "pause", "restart", "longest"])
def test_rates_of_faults_name_the_number_that_is_wrong(name: str) -> None:
    for value, kind in ((-1, ValueError), (math.inf, ValueError), ("1", TypeError)):
        with pytest.raises(kind, match=f"{name}=.* must be a number"):
            FaultRates(**{name: value})  # type: ignore[arg-type]  # the fault


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"seeds": 1.5}, TypeError, "seeds=1.5 must be an integer"),
        ({"seeds": "7"}, TypeError, "seeds='7' must be int"),
        ({"seeds": -1}, ValueError, "seeds=-1 must be at least 0"),
        ({"faults": Faults()}, TypeError, "faults=.* must be FaultRates, not Faults"),
        ({"limit": math.nan}, ValueError, "limit=nan must be at least 0 seconds"),
        ({"limit": None}, TypeError, "limit=None must be a number of seconds"),
    ],
)
def test_a_simulation_names_the_option_that_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        simulated(**given)


def test_a_simulation_is_of_a_coroutine_function() -> None:
    def scenario(world: World) -> None: ...

    with pytest.raises(TypeError, match="decorates `async def scenario"):
        simulated()(scenario)  # type: ignore[arg-type]  # the fault


def test_a_seed_of_the_environment_that_is_no_number_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    @simulated()
    async def scenario(world: World) -> None: ...

    monkeypatch.setenv("POLYBUS_SEED", "x")
    with pytest.raises(ValueError, match="POLYBUS_SEED='x' must be an integer"):
        scenario()


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"max_payload": 0}, ValueError, "max_payload=0 must be at least 1"),
        ({"max_payload": "1"}, TypeError, "max_payload='1' must be an integer"),
        ({"token": None}, TypeError, "token=None must be str"),
        ({"rng": 7}, TypeError, "rng=7 must be Random"),
        ({"address": 7}, TypeError, "address=7 must be str"),
    ],
)
def test_an_engine_names_the_option_that_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        NatsEngine(**given)


async def test_a_cluster_is_of_buses() -> None:
    with pytest.raises(TypeError, match="bus=7 must be Bus"):
        async with cluster(7):  # type: ignore[arg-type]  # the fault
            pass
