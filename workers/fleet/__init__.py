"""Orders to workers, drains, and queries about the fleet."""
