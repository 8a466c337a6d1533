"""HTTP server tests over real sockets with the official clients."""
