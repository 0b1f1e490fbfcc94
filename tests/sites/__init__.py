"""A small site in many conditions, and one story that each of them has to live through."""
