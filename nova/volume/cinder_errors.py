"""What Cinder answers, as Nova's errors."""

from __future__ import annotations

import requests

from nova import exception
from nova.service_clients import error_message


def check(answer: requests.Response, volume: str = "") -> None:
    """Raises VolumeNotFound (of ``volume``) or NotFound, InvalidVolume, Forbidden, QuotaLimit,
    VolumeServiceUnavailable."""
    status = answer.status_code
    if status < 300:
        return
    message = error_message(answer, "volume")
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
    raise exception.VolumeServiceUnavailable(reason=f"it answered {status}")
