"""The other end of a link: verbs towards it, subscriptions, and dispatch of its messages."""
