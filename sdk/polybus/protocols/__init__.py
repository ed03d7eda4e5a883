"""The protocols: in each a pure codec and, on it, a session without I/O."""
