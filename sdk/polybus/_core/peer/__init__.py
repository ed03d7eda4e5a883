"""The program at the other end of a link: the verbs that address it, its subscriptions, and the dispatch of its messages."""
