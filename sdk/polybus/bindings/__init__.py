"""Protocols over HTTP. Each package maps one protocol to requests and responses."""
