"""The pipeline as a job for spark-submit: spark-submit --master spark://host:7077 analyse_job.py CAPTURE OUT"""

import sys

from polybus.spark import Pipeline, start_session

capture, out = sys.argv[1:]
spark = start_session(name="what happened on the bus")
done = Pipeline(spark).run(capture, out)
print(f"{done.total.frames} frames, {done.total.exchanges} exchanges: {done.report}")
spark.stop()
