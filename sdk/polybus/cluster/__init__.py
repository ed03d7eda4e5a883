"""Runs many processes as one bus over a NATS engine: `Bus(cluster=...)`, and the supervisor and its workers."""
