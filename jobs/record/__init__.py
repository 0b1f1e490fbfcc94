"""The record of events, and the figures computed from it."""
