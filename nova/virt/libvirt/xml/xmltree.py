"""Helpers for reading and writing XML."""

import re
import xml.etree.ElementTree as ET


def element(parent: ET.Element, tag: str, text: object = None, **attributes: object) -> ET.Element:
    """Append a child with text and attributes. None values are omitted; a trailing _ of a name is removed."""
    child = ET.SubElement(parent, tag, {name.rstrip("_"): str(value) for name, value in attributes.items()
                                        if value is not None})
    if text is not None:
        child.text = clean(str(text))
    return child


def attribute(parent: ET.Element | None, path: str, name: str) -> str:
    """Return an attribute of the first element at ``path`` below the parent, or "" if one of them is missing."""
    item = parent.find(path) if parent is not None else None
    return item.get(name, "") if item is not None else ""


def clean(text: str) -> str:
    """Remove the characters that XML cannot represent."""
    return re.sub("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
