"""The HTTP layer between a socket and a route: connections, middleware, access, negotiation, tracing."""
