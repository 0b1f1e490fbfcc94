"""This server's contender: a Django site with one handler."""
