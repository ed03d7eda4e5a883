"""J.REP over HTTP as Errai speaks it: posts, long polls, server-sent events, and the switch to a WebSocket."""
