"""One Spark session for all tests of a process: it takes ten seconds to start."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from polybus.spark import BusDataSource
from polybus.spark.session import start_session

from .support import QUICK
from .tutorial import Tutorial, play


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Two threads. As on a cluster, a failed task is repeated."""
    session = start_session("local[2,2]", settings={**QUICK, "spark.driver.memory": "2g"})
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(BusDataSource)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Tutorial:
    """The one command that starts a JVM of its own."""
    return play(tmp_path_factory.mktemp("tutorial"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A JVM on a busy machine takes its time."""
    here = Path(__file__).parent
    for item in items:
        # A path is taken apart for those alone whose name may fit: all tests of the run are given here.
        if here.name in item.nodeid and item.path.parent == here and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))
