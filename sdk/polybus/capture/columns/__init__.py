"""Events as Parquet beside the segments: decoded once, and read instead of decoding again."""
