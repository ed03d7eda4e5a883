"""Protocol buffers, as far as several protocols write and read them: the wire by hand, ``Any``, ``Value`` and ``Status``."""
