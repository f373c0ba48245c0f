"""Platforms of tests, from the text of a platform file."""

from nova.novad import documents
from nova.novad.platform import Platform, platform_of


def parse(text: str, kind: str, name: str = "platform") -> Platform:
    return platform_of(documents.parse(text, kind, name), name)
