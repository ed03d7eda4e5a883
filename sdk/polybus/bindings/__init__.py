"""Protocols over HTTP: each package maps one protocol to requests and responses."""
