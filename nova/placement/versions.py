"""Microversions of the Placement API, written as minor numbers: 28 is 1.28."""

import re
from typing import Any

from nova import exception

MIN, MAX = 0, 39
HEADER = "OpenStack-API-Version"
SERVICE = "placement"
_PATTERN = re.compile(r"(\d{1,9})\.(\d{1,9})", re.ASCII)


class VersionNotAcceptable(exception.NovaException, code=406, template="Unacceptable version header: {version}"): ...
class VersionMalformed(exception.Invalid, template="invalid version string: {version}"): ...


def text(version: int) -> str:
    return f"1.{version}"


def requested(header: str | None) -> int:
    """Return the version that the header OpenStack-API-Version requests; it may have versions for several services.
    Raises VersionMalformed, VersionNotAcceptable."""
    value = ""
    for item in (header or "").split(","):
        service, _, version = item.strip().partition(" ")
        if service.lower() == SERVICE:
            value = version.strip()
    if not value:
        return MIN
    if value == "latest":
        return MAX
    match = _PATTERN.fullmatch(value)
    if match is None:
        raise VersionMalformed(version=value[:100])
    if int(match[1]) != 1 or not MIN <= int(match[2]) <= MAX:
        raise VersionNotAcceptable(version=value)
    return int(match[2])


def document() -> dict[str, Any]:
    """Return the version document, which is served without a token."""
    return {"versions": [{"id": "v1.0", "min_version": text(MIN), "max_version": text(MAX), "status": "CURRENT",
                          "links": [{"rel": "self", "href": ""}]}]}
