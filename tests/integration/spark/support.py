"""Shared by the tests of Spark."""

from typing import Final

QUICK: Final = {
    "spark.sql.shuffle.partitions": "2",
    # Each query is made into Java and compiled otherwise, which a few thousand rows do not pay back.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # Tests are short: optimizing the JVM's code costs more than it brings.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
