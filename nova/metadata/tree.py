"""Both trees of one instance behind paths, as the service answers them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from nova.metadata import ec2, openstack
from nova.metadata.settings import Settings
from nova.objects.base import utcnow
from nova.objects.guest import password_of
from nova.objects.instance import Instance

TEXT = "text/plain; charset=UTF-8"
JSON = "application/json"
# Shown to anybody: the trees' roots say nothing about an instance.
ROOT = "\n".join([*ec2.VERSIONS, "latest"])


@dataclasses.dataclass(frozen=True)
class Document:
    body: bytes
    content_type: str = TEXT


def segments(path: str) -> list[str]:
    """The parts of a path without empty ones."""
    return [part for part in path.split("/") if part]


class Tree:
    """What one instance sees. Make a new one when the instance changed."""

    def __init__(self, instance: Instance, settings: Settings) -> None:
        self.instance = instance
        self.settings = settings

    def lookup(self, path: str) -> Document | None:
        """A document or a directory listing; None: there is no such path."""
        parts = segments(path)
        if parts and parts[0] == "openstack":
            return self._openstack(parts[1:])
        if parts and parts[0] == "ec2":
            parts = parts[1:]
        return self._ec2(parts)

    def _ec2(self, parts: list[str]) -> Document | None:
        if not parts:
            return _text(ROOT)
        version = ec2.resolve(parts[0])
        if version is None:
            return None
        node: Any = ec2.tree(self.instance, version, self.settings)
        for part in parts[1:]:
            if not isinstance(node, Mapping) or part not in node or part.startswith("_"):
                return None
            node = node[part]
        if isinstance(node, Mapping):
            return _text("\n".join(_entries(node)))
        return Document(node) if isinstance(node, bytes) else _text(node)

    def _openstack(self, parts: list[str]) -> Document | None:
        if not parts:
            return _text("\n".join(openstack.listed(utcnow().date())))
        if parts[0] == "content":
            body = openstack.content(self.instance, parts[1]) if len(parts) == 2 else None
            return None if body is None else Document(body, "application/octet-stream")
        version = openstack.resolve(parts[0])
        if version is None or len(parts) > 2:
            return None
        if len(parts) == 1:
            return _text("\n".join(openstack.documents(version, bool(self.instance.user_data))))
        make = self._makers(version).get(parts[1])
        return make() if make else None

    def _makers(self, version: str) -> dict[str, Callable[[], Document | None]]:
        instance, settings = self.instance, self.settings
        makers: dict[str, Callable[[], Document | None]] = {
            "meta_data.json": lambda: _json(openstack.meta_data(instance, version, settings)),
            "user_data": self._user_data,
            "network_data.json": lambda: Document(openstack.encode(openstack.network_data(instance.network_info))),
        }
        if version >= openstack.GRIZZLY:
            makers["password"] = lambda: _text(password_of(instance.system_metadata))
        if version >= openstack.HAVANA:
            makers["vendor_data.json"] = lambda: _json(openstack.vendor_data(settings))
        if version >= openstack.NEWTON_TWO:
            makers["vendor_data2.json"] = lambda: _json(openstack.vendor_data2(settings))
        return makers

    def _user_data(self) -> Document | None:
        data = ec2.user_data(self.instance)
        return None if data is None else Document(data, "application/octet-stream")


def is_password(path: str) -> bool:
    """Whether a path names a resource that a guest may post its password to."""
    parts = segments(path)
    version = openstack.resolve(parts[1]) if len(parts) == 3 and parts[0] == "openstack" else None
    return version is not None and version >= openstack.GRIZZLY and parts[2] == "password"


def _entries(node: Mapping[str, Any]) -> list[str]:
    """The lines of a listing. Public keys are listed with their names."""
    lines = []
    for name in sorted(node):
        value = node[name]
        if name.startswith("_"):
            continue
        if isinstance(value, Mapping):
            lines.append(value.get("_name") or f"{name}/")
        else:
            lines.append(name)
    return lines


def _text(text: str) -> Document:
    return Document(text.encode())


def _json(document: Any) -> Document:
    return Document(openstack.encode(document), JSON)
