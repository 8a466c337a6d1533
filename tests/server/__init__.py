"""The HTTP server, over real sockets: what is promised to clients."""
