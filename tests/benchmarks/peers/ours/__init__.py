"""What runs the no-op job here: a Django site with one handler."""
