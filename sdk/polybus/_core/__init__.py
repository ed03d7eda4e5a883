"""The core that every bus uses, with one subpackage for each task. The layers are listed in pyproject.toml."""
