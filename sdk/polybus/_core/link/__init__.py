"""One connection: a session joined to a transport."""
