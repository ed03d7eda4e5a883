"""A program that follows a capture to its end, unless it is killed: ``python -m tests.integration.spark.kills CAPTURE OUT``."""

import sys

from pyspark.errors import StreamingQueryException

from polybus.spark import Pipeline, start_session

from .support import QUICK


def main(capture: str, out: str) -> None:
    spark = start_session("local[2]", settings=QUICK)
    spark.sparkContext.setLogLevel("ERROR")
    while True:
        try:
            Pipeline(spark).stream(capture, out, max_rows=10_000).awaitTermination()
        except StreamingQueryException as error:
            # Spark gives a source's Python process 10 s to start, which a busy machine may exceed.
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return


if __name__ == "__main__":
    main(*sys.argv[1:])
