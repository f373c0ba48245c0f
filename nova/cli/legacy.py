"""What upstream's API removed with nova-network: served for the embedded networks where [api]legacy is on."""

from __future__ import annotations

from typing import Any

from nova.cli.client import Nova
from nova.cli.errors import CommandError, Refused

# The last microversions with embedded networks, and with the actions of servers about them.
OLD, OLD_ACTIONS = 35, 43
_GONE = 410


def call(nova: Nova, method: str, path: str, body: Any = None, otherwise: str = "") -> Any:
    """The API's answer. Raises CommandError, with what else helps, where the API does not serve it."""
    try:
        return nova.call(method, path, body, version=OLD)
    except Refused as error:
        if error.status == _GONE:
            raise CommandError(otherwise or "This API does not serve it: it does with [api]legacy.") from error
        raise
