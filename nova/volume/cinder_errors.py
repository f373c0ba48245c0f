"""Mapping of Cinder's error responses to Nova's exceptions."""

from __future__ import annotations

import requests

from nova import exception
from nova.service_clients import error_message


def check(response: requests.Response, volume: str = "") -> None:
    """Raise the exception for an error response.

    ``volume``: the id of the volume that status 404 refers to. Raises VolumeNotFound, NotFound, InvalidVolume,
    Forbidden, QuotaLimit, VolumeServiceUnavailable.
    """
    status = response.status_code
    if status < 300:
        return
    message = error_message(response, "volume")
    if status == 404 and volume:
        raise exception.VolumeNotFound(volume_id=volume)
    if status == 404:
        raise exception.NotFound(message)
    if status in (400, 409):
        raise exception.InvalidVolume(reason=message.removeprefix("Invalid volume: "))
    if status == 413:
        raise exception.QuotaLimit(message)
    if status in (401, 403):
        raise exception.Forbidden(message)
    raise exception.VolumeServiceUnavailable(reason=f"the service responded with status {status}")
