"""Recorded traffic: every frame of every link, both directions. Needs ``pip install 'polybus[capture]'``."""
