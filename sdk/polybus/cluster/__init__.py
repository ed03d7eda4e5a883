"""Many processes as one bus, over a NATS engine: `Bus(cluster=...)`."""
