"""Shared by the HTTP endpoints of every protocol: hosts, origins, keys, bodies and waiting."""
