"""Calls of nova-network APIs, which upstream removed: served for embedded networks if [api]legacy is enabled."""

from __future__ import annotations

from typing import Any

from nova.cli.client import Nova
from nova.cli.errors import CommandError, Refused

# The last microversions with the APIs of embedded networks, and with the server actions for them.
OLD, OLD_ACTIONS = 35, 43
_REMOVED_RESOURCE = 410


def call(nova: Nova, method: str, path: str, body: Any = None, otherwise: str = "") -> Any:
    """Send a request. Raises CommandError with ``otherwise`` (a hint) if the API does not serve it."""
    try:
        return nova.call(method, path, body, version=OLD)
    except Refused as error:
        if error.status == _REMOVED_RESOURCE:
            raise CommandError(otherwise or "This API does not serve the request: it requires [api]legacy.") from error
        raise
