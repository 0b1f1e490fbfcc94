"""Endpoints of the Admin API that need `workers`: workers, and statistics of the whole server."""
