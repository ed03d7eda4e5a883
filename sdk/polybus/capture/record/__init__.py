"""Recording: taps on links, the recorder, and redaction."""
