"""What the codecs make of frames, written once as Parquet beside the segments, and read in place of decoding."""
