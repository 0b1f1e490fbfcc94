"""What the servers beside the HTTP port share: TLS, and the keys of connections that stay open."""
