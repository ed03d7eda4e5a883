"""CloudEvents over HTTP (CloudEvents 1.0.2, HTTP protocol binding), for uProtocol."""
