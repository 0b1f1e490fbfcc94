"""Orders to workers, drains, and what is known about the fleet."""
