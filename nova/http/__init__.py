"""The HTTP server of the API, and the HTTP parser that the metadata service shares with it. h11 parses only requests of
an unusual form.

One thread handles all connections, so that slow clients do not occupy the threads that process requests."""
