"""RPC and publish/subscribe over any protocol and any transport."""
