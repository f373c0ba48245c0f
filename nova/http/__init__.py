"""The HTTP server of the API and the metadata service, with h11 as parser of all but the usual requests, within
limits.

One thread has all connections, so that slow clients occupy none of the threads that process requests."""
