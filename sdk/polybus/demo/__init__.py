"""The story of `polybus demo`: two programs and a visitor, played by real processes.

`plant` is the server, `desk` the client; `van` is a vehicle on Zenoh, `gate` its way in: files to be read. `scenes` is the
story, step by step, and `cast` the processes; `polybus.cli` prints it.
"""
