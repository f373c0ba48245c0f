"""The response to a request, as the API builds it."""

import dataclasses
import http
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from nova.http.messages import Environ

JSON = "application/json"

_LINES = {status.value: f"{status.value} {status.phrase}" for status in http.HTTPStatus}


@dataclasses.dataclass(slots=True)
class Reply:
    """A response. ``headers``: by name in lower case. A response with status 204 has no content."""

    status: int = 200
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    content_type: str = JSON
    data: bytes = b""

    def set_headers(self, headers: Mapping[str, str]) -> None:
        for name, value in headers.items():
            self.headers[name.lower()] = value

    def send(self, environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        """Send the response by WSGI. The response to HEAD has the headers of the one to GET."""
        headers = list(self.headers.items())
        if self.status != 204:
            headers += [("content-type", self.content_type), ("content-length", str(len(self.data)))]
        start_response(_LINES.get(self.status, f"{self.status} "), headers)
        return () if self.status == 204 or environ["REQUEST_METHOD"] == "HEAD" else (self.data,)
