"""The address of a program, for the test that has started it: its log goes to a file."""

import logging


class Printer(logging.Handler):
    """Prints the lines of `polybus.run` that say where it serves."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.msg == "serving %s":
            print(record.getMessage(), flush=True)


def print_urls() -> None:
    """Print ``serving URL`` on stdout, where `polybus.run` logs it and does not print it itself."""
    logging.getLogger("polybus").addHandler(Printer())
