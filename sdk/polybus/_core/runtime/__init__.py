"""Services that all parts of a bus use: event loop, workers, threads, memory, access control, and running handlers."""
