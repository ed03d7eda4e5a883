"""The other end of a link: verbs towards it, and dispatch of what it sends."""
