"""J.REP over HTTP as in Errai: posts, long polls, server-sent events, and the upgrade to a WebSocket."""
