"""The HTTP server, over real sockets and with the official clients."""
