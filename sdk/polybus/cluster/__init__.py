"""Many processes as one bus, over a NATS engine: `Bus(cluster=...)`, and the workers that a program is started as."""
