"""Durable publications: the engine's stores (JetStream), their readers, and dead letters."""
