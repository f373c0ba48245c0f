"""Checks of the string formats that schemas use."""

import base64
import binascii
import datetime
import ipaddress
import re
import unicodedata
import uuid
from collections.abc import Callable

from nova.common import plain_ip
from nova.objects import expression

_NAME_RULE = "printable characters. Can not start or end with whitespace."
_SPACES_RULE = "printable characters with at least one non space character"
_ZONE_RULE = "printable characters except :. Can not start or end with whitespace."


def parse_time(text: str) -> datetime.datetime:
    """Parse an ISO 8601 time (by default in UTC); return an aware UTC time. Raises ValueError."""
    # If a client does not quote the "+" of a time zone in a URL, it arrives as a space.
    try:
        value = datetime.datetime.fromisoformat(text)
    except ValueError:
        value = datetime.datetime.fromisoformat(re.sub(r" (\d\d:?\d\d)$", r"+\1", text))
    if value.tzinfo is None:
        value = value.replace(tzinfo=datetime.UTC)
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def decode_base64(text: str) -> bytes:
    """Decode base64, in which line breaks are allowed. Raises ValueError."""
    try:
        return base64.b64decode("".join(text.split()).encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("not base64") from error


def is_uuid(text: object) -> bool:
    """Return True for a uuid, with or without hyphens, in upper or lower case."""
    if not isinstance(text, str):
        return False
    try:
        plain = uuid.UUID(text).hex
    except ValueError:
        return False
    return text.lower().replace("-", "") == plain


def canonical_ipv6(text: str) -> str:
    """Return the canonical text of an IPv6 address (RFC 5952). Raises ValueError."""
    return str(plain_ip.v6_address(text))


def printable(text: str) -> bool:
    """Return True for characters of the basic plane that are not controls, unassigned or line separators."""
    return all(ord(char) < 0xFFFE and not unicodedata.category(char).startswith(("C", "Zl", "Zp"))
               for char in set(text))


def _name(value: str) -> bool:
    return bool(value) and printable(value) and not value[0].isspace() and not value[-1].isspace()


def _name_with_spaces(value: str) -> bool:
    return printable(value) and bool(value.strip())


class NameError_(ValueError):
    """An invalid name. The message is complete and shown to the client without a prefix."""

    def __init__(self, rule: str) -> None:
        super().__init__(f"An invalid 'name' value was provided. The name must be: {rule}")


def _with_rule(check: Callable[[str], bool], rule: str) -> Callable[[str], bool]:
    def checked(value: str) -> bool:
        if not check(value):
            raise NameError_(rule)
        return True

    return checked


def _is_address(kind: type) -> Callable[[str], bool]:
    return lambda value: bool(kind(value)) and "%" not in value


# Format name -> check, which returns False or raises ValueError for a string that does not have the format.
CHECKS: dict[str, Callable[[str], object]] = {
    "name": _with_rule(_name, _NAME_RULE),
    "name_with_leading_trailing_spaces": _with_rule(_name_with_spaces, _SPACES_RULE),
    "az_name": _with_rule(lambda value: _name(value) and ":" not in value, _ZONE_RULE),
    "az_name_with_leading_trailing_spaces": _with_rule(
        lambda value: _name_with_spaces(value) and ":" not in value, _ZONE_RULE),
    "printable": printable,
    "uuid": is_uuid,
    "ipv4": _is_address(ipaddress.IPv4Address),
    "ipv6": _is_address(ipaddress.IPv6Address),
    "date-time": parse_time,
    # Any text: an expression that RE2 does not support is searched for literally.
    "regex": lambda value: expression.check(value, expression.LONGEST_TEXT) == value,
    "base64": lambda value: decode_base64(value) is not None}
