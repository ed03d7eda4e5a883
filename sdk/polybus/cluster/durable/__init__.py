"""Durable publications: stores of the engine (JetStream), their readers, and dead letters."""
