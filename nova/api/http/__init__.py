"""Serving HTTP, which h11 reads and writes: requests within limits, and the server of the API.

One thread has all connections, so that slow clients hold none of those that answer.
"""
