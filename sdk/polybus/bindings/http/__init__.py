"""HTTP code shared by all bindings: transport adapter, client, server and listener."""
