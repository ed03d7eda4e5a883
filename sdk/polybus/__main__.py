"""Run the command line with ``python -m polybus``, which works even if the ``polybus`` script is not on the PATH."""

from .cli import main

main()
