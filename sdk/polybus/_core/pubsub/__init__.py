"""Publications: sends and receives them, announces subscriptions, and queues messages for handlers."""
