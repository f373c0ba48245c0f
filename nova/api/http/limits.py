"""Limits of clients of the API."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of clients: bytes of the request line and headers, bytes of a body, seconds for a whole request,
    connections of one client and in total. ``trusted``: addresses (proxies) without a limit of connections.
    """

    header_size: int = 32 * 1024
    body_size: int = 112 * 1024
    receive: float = 30.0
    per_client: int = 256
    total: int = 1000
    trusted: Callable[[str], bool] = lambda address: False
