"""Scenes: whole installations in the database, for tests of pages, and for the pictures of them."""
