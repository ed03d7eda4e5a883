"""``python -m polybus.cli``"""

from . import main

main()
