"""The story of `polybus demo`: two programs and a visitor, played by real processes.

`plant` is the server, `desk` the client; `van` is a vehicle on Zenoh, `gate` its bridge: example programs to read. `scenes`
has the steps of the story, and `cast` its processes; `polybus.cli` prints it.
"""
