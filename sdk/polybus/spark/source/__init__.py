"""The data source and sink ``polybus`` of Spark."""
