"""Publications: publisher, announcer of subscriptions, receiver, queues of handlers."""
