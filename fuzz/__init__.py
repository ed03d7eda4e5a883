"""Fuzzing of the decoders: one target each, under coverage guidance (`python -m fuzz`) and, shortly, in every test run."""
