"""What the tests of Spark share."""

from typing import Final

QUICK: Final = {
    "spark.sql.shuffle.partitions": "2",
    # Tests are short: optimizing the JVM's code costs more than it brings.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
