"""One Spark for all tests of a process: it takes ten seconds to start."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from polybus.spark.session import start_session

from .support import QUICK


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("local[2]", settings={**QUICK, "spark.driver.memory": "2g"})
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
