"""The scenes of `polybus demo`, which are played by real processes.

The example programs are `plant` (a server), `desk` (a client), `van` (a vehicle on Zenoh) and `gate` (its bridge). `scenes`
runs them step by step, and `cast` manages their processes.
"""
