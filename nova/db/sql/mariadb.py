"""Connections to MySQL and MariaDB by PyMySQL."""

import threading
from typing import Any

import sqlalchemy as sa

# Options of TLS that name files, which an operator may replace: each new connection reads them.
_FILES = {"ca", "capath", "cert", "key"}

# TLS contexts of this process, by the options from which they were made.
_contexts: dict[tuple[tuple[str, str], ...], Any] = {}
_lock = threading.Lock()


def share_contexts(engine: sa.Engine) -> None:
    """Share one TLS context of the process among the connections of ``engine`` that read no TLS files.

    PyMySQL itself makes a context for each connection, even if the server has no TLS, and loads all certificates of the
    machine into it, which takes 0.9 MB and 36 ms."""
    import pymysql  # needed with MariaDB only

    class Connection(pymysql.connections.Connection):  # type: ignore[misc]
        def _create_ssl_ctx(self, options: Any) -> Any:
            if not isinstance(options, dict) or _FILES & {name for name, value in options.items() if value}:
                return super()._create_ssl_ctx(options)
            key = tuple(sorted((name, str(value)) for name, value in options.items()))
            with _lock:
                if key not in _contexts:
                    _contexts[key] = super()._create_ssl_ctx(options)
                return _contexts[key]

    def connect(_dialect: Any, _record: Any, arguments: Any, options: dict[str, Any]) -> Connection:
        return Connection(*arguments, **options)

    sa.event.listen(engine, "do_connect", connect)
