"""The services of a bus: runtime, workers, memory, access, execution of handlers."""
