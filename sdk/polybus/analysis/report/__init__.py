"""The metrics and the report."""
