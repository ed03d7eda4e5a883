"""Protocols over HTTP: each package binds one protocol to requests and responses."""
