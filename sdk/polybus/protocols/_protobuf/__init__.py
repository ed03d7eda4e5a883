"""Protocol buffers shared by several protocols: wire format, ``Any``, ``Value`` and ``Status``."""
