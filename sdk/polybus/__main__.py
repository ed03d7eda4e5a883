"""Run the command line with ``python -m polybus``, for example if the ``polybus`` script is not on the PATH."""

from .cli import main

main()
