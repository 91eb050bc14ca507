"""Between a socket and a route: connections, limits, middleware, keys, negotiation, tracing."""
