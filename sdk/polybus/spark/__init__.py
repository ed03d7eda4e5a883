"""The data pipeline on Spark: tables, metrics and a report out of recorded traffic. Needs ``pip install 'polybus[spark]'``."""
