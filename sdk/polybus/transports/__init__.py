"""The transports: one connection each, carrying whole frames."""
