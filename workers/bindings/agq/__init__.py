"""AGQ: worker registration and jobs over RESP, the protocol of Redis clients."""
