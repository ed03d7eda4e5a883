"""HTTP for all bindings: transport adapter, client, server and listener."""
