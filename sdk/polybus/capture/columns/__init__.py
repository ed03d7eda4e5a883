"""Events as Parquet beside the segments: what the codecs make of frames, written once, and read in place of decoding."""
