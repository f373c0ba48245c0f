"""Proxies between browsers and the consoles of guests.

A proxy serves web pages and accepts WebSocket connections (:mod:`nova.console.server`). The URL of a connection has a
token: the conductor returns the console of the token, and the guest's host confirms that the console still exists
(:mod:`nova.console.authorization`). Then the proxy relays bytes until either side closes the connection, or until the
server is stopped, moved or deleted (:mod:`nova.console.session`). One event loop serves all connections; RPC calls run
in a small thread pool."""
