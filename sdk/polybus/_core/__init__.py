"""The core: what every bus is made of, one room for each task. Floors: pyproject.toml."""
