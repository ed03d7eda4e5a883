"""Recording: taps on links, the recorder, redaction."""
