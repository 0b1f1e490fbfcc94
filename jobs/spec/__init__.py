"""Reads documents into values: declares what a request may contain, and serializes jobs."""
