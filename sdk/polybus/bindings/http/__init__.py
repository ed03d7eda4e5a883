"""HTTP for every binding: the transport adapter, client, server and listener."""
