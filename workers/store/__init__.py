"""Writes the rows of workers, whatever the database."""
