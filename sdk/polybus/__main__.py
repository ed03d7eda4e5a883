"""``python -m polybus``: the command, wherever this Python's scripts are."""

from .cli import main

main()
