"""A link, which connects a session to a transport."""
