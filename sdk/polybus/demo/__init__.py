"""The scenes of `polybus demo`, played by real processes.

`plant` (a server), `desk` (a client), `van` (a vehicle on Zenoh) and `gate` (its bridge) are example programs to read. `scenes`
runs them step by step, and `cast` manages their processes.
"""
