"""The stages of the pipeline: ingest, correlation, tables and manifests."""
