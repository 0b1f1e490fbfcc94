"""Deciding which jobs a worker may have, and waiting for them."""
