"""The HTTP server of the API: one thread for all connections, so that slow clients hold none of those that answer."""
