"""Fuzzing of the decoders: one target each, guided by coverage (`python -m fuzz`) and, briefly, in every test run."""
