"""The story of `polybus demo` as it is seen: on a terminal, in a pipe, as a picture that moves, and as a page."""
