"""The proxies between browsers and the consoles of guests.

A proxy serves web pages and takes WebSocket connections (:mod:`nova.console.server`). A connection brings the token of
its URL: the conductor says what that leads to, and the guest's host whether the console is still there
(:mod:`nova.console.gate`). Then bytes go to and fro until one side ends, or the server is not what it was
(:mod:`nova.console.session`). One event loop has all connections; what asks over the bus has a few threads.
"""
