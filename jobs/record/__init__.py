"""The record of events and the figures folded from it."""
