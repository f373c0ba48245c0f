"""Conversion of a server's display name to a host name."""

import re


def hostname_of(display_name: str, default: str) -> str:
    """Return a host name of at most 63 characters of a-z 0-9 and ``-``, or ``default`` if no usable character is left.
    """
    latin = display_name.encode("latin-1", "ignore").decode("latin-1")
    dashed = re.sub(r"[ _.]", "-", latin)
    plain = re.sub(r"[^\w-]", "", dashed, flags=re.ASCII).lower()
    return plain[:63].strip(".-") or default
