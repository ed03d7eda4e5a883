"""Stores decoded events as Parquet files next to the segments, so that readers don't have to decode them again."""
