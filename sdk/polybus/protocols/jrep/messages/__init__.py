"""Messages of J.REP: reading and writing of payloads."""
