"""``python -m polybus``: runs the command without a script on the path."""

from .cli import main

main()
