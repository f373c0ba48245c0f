"""An HTTP session for tests, which send a hundred thousand requests and poll."""

from __future__ import annotations

import http.client
import json as json_format
import re
import select
import threading
import urllib.parse
from collections.abc import Mapping
from typing import Any

import requests

_PLAIN = re.compile(r"http://[A-Za-z0-9._~:/?@!$&'()*+,;=-]+")  # the library changes other characters
_REDIRECTS = (301, 302, 303, 307, 308)


class Session(requests.Session):
    """A session of the library requests with its own :meth:`request`, which takes a quarter of the CPU time. Requests
    that need more than that (TLS, redirects, files, hooks, other arguments) are sent by the library. Thread-safe."""

    def __init__(self) -> None:
        super().__init__()
        self.trust_env = False  # proxies and .netrc of the environment are read for each request otherwise
        self.headers["Accept-Encoding"] = "identity"
        self._connections = threading.local()

    def request(self, method: str, url: str, params: Any = None, data: Any = None,  # type: ignore[override]
                headers: Mapping[str, Any] | None = None, json: Any = None, timeout: float | None = None,
                **others: Any) -> requests.Response:
        """Send a request and return any response. Raises requests.ConnectionError, ReadTimeout."""
        values = {**self.headers, **(headers or {})}
        simple = (_PLAIN.fullmatch(url) and isinstance(data, str | bytes | None) and not isinstance(params, str | bytes)
                  and others in ({}, {"allow_redirects": True})
                  and all(isinstance(value, str) and value.isascii() for value in values.values()))
        if simple:
            parts = urllib.parse.urlsplit(url)
            if isinstance(params, dict):
                params = {name: value for name, value in params.items() if value is not None}
            body = data.encode() if isinstance(data, str) else data
            if body is None and json is not None:
                body = json_format.dumps(json, allow_nan=False).encode()
                values.setdefault("Content-Type", "application/json")
            query = "&".join(filter(None, (parts.query, urllib.parse.urlencode(params, doseq=True) if params else "")))
            target = (parts.path or "/") + (f"?{query}" if query else "")
            response = self._send(parts.netloc, method, target, body, values, timeout)
            if response.status_code not in _REDIRECTS:
                response.url = f"http://{parts.netloc}{target}"
                response.request = requests.Request(method, url)  # type: ignore[assignment]
                return response
        return super().request(method, url, params=params, data=data, headers=headers, json=json, timeout=timeout,
                               **others)

    def _send(self, address: str, method: str, target: str, body: bytes | None, headers: dict[str, str],
              timeout: float | None) -> requests.Response:
        connection = self._connection(address, timeout)
        try:
            connection.request(method, target, body, headers)
            received = connection.getresponse()
            content = received.read()
        except TimeoutError as error:
            connection.close()
            raise requests.ReadTimeout(error) from error
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise requests.ConnectionError(error) from error
        response = requests.Response()
        response.status_code, response.reason, response._content = received.status, received.reason, content
        response.headers = requests.structures.CaseInsensitiveDict(
            {name: ", ".join(received.headers.get_all(name, ())) for name in received.headers})
        response.encoding = requests.utils.get_encoding_from_headers(response.headers)
        return response

    def _connection(self, address: str, timeout: float | None) -> http.client.HTTPConnection:
        """Return this thread's connection to the address, a new one if the server has closed the earlier one."""
        connections = self._connections.__dict__
        connection: http.client.HTTPConnection | None = connections.get(address)
        if connection is None:
            connection = connections[address] = http.client.HTTPConnection(address, timeout=timeout)
        elif connection.sock is not None:
            readable = select.poll()
            readable.register(connection.sock, select.POLLIN)
            if readable.poll(0):
                connection.close()
            else:
                connection.sock.settimeout(timeout)
        connection.timeout = timeout
        return connection

    def close(self) -> None:
        for connection in self._connections.__dict__.values():
            connection.close()
        super().close()
