"""Microversions: the supported range, and the microversion of a request.

Everywhere in the API a microversion is written as its minor number: 47 is 2.47. 0 is the compatibility mode of ``/v2``:
its declarations may differ from those of 1, and its handlers get 1."""

import re

from nova import exception

LEGACY = 0
MIN = 1
MAX = 104

HEADER = "OpenStack-API-Version"
OLD_HEADER = "X-OpenStack-Nova-API-Version"
SERVICE = "compute"

_PATTERN = re.compile(r"([1-9]\d*)\.([1-9]\d*|0)")


class VersionNotAcceptable(exception.NovaException, code=406, template=(
        f"Version {{version}} is not supported by the API. Minimum is 2.{MIN} and maximum is 2.{MAX}.")): ...
class VersionMalformed(exception.Invalid, template=(
        "API Version String {version} is of invalid format. Must be of format MajorNum.MinorNum.")): ...


def text(version: int) -> str:
    return f"2.{version}"


def requested(new: str | None, old: str | None) -> int:
    """Return the version that the new header requests, else the one of the old header, else 1. The new header may name
    versions of several services. Raises VersionMalformed, VersionNotAcceptable."""
    value = (old or "").strip()
    for item in (new or "").split(","):
        service, _, version = item.strip().partition(" ")
        if service == SERVICE and version.strip():
            value = version.strip()
    return parse(value) if value else MIN


def parse(value: str) -> int:
    """Return the minor number of a microversion such as "2.47" or "latest". Raises VersionMalformed."""
    if value == "latest":
        return MAX
    match = _PATTERN.fullmatch(value)
    if match is None:
        raise VersionMalformed(version=value)
    # Longer numbers are too large in any case, and int() raises ValueError for thousands of digits.
    minor = int(match[2]) if len(match[2]) <= len(str(MAX)) else MAX + 1
    if match[1] != "2" or not MIN <= minor <= MAX:
        raise VersionNotAcceptable(version=value)
    return minor
