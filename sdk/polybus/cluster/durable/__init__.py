"""Publications that survive a crash: stores of the engine (JetStream), and what is done with them."""
