"""Several processes that are one bus."""
