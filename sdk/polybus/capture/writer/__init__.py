"""The writer of segments: in this thread, in another thread or in a process of its own."""
