"""The Rota worker protocol: a WebSocket at `/work` (`seeds/rota-worker-protocol.txt`)."""
