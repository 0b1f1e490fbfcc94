"""Shared by the bindings: long polling, URLs with a switch, TLS for servers with their own port."""
