"""Lookup of metadata documents by path, in the EC2 tree and the OpenStack tree of an instance."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from nova.metadata import ec2, openstack
from nova.metadata.settings import MetadataSettings
from nova.objects.base import utcnow
from nova.objects.servers.guest import password_of
from nova.objects.servers.instance import Instance

TEXT = "text/plain; charset=UTF-8"
JSON = "application/json"
BINARY = "application/octet-stream"
_TYPES = {"user_data": BINARY, "network_data.json": TEXT}
ROOT = "\n".join([*ec2.VERSIONS, "latest"])  # the listing of the root, the same for all instances


@dataclasses.dataclass(frozen=True)
class Document:
    """A response body with its content type."""

    body: bytes
    content_type: str = TEXT


def segments(path: str) -> list[str]:
    """Return the non-empty components of a path."""
    return [segment for segment in path.split("/") if segment]


class Tree:
    """The metadata trees of an instance. Create a new object when the instance has changed."""

    def __init__(self, instance: Instance, settings: MetadataSettings) -> None:
        self.instance = instance
        self.settings = settings

    def lookup(self, path: str) -> Document | None:
        """Return a document or a listing, or None if there is no such path."""
        names = segments(path)
        if names and names[0] == "openstack":
            return self._openstack(names[1:])
        if names and names[0] == "ec2":
            names = names[1:]
        return self._ec2(names)

    def _ec2(self, names: list[str]) -> Document | None:
        if not names:
            return _text(ROOT)
        version = ec2.resolve(names[0])
        if version is None:
            return None
        node: Any = ec2.tree(self.instance, version, self.settings)
        for name in names[1:]:
            if not isinstance(node, Mapping) or name not in node or name.startswith("_"):
                return None
            node = node[name]
        if isinstance(node, Mapping):
            return _text("\n".join(_entries(node)))
        return Document(node) if isinstance(node, bytes) else _text(node)

    def _openstack(self, names: list[str]) -> Document | None:
        if not names:
            return _text("\n".join(openstack.listed(utcnow().date())))
        if names[0] == "content":
            body = openstack.content(self.instance, names[1]) if len(names) == 2 else None
            return None if body is None else Document(body, BINARY)
        version = openstack.resolve(names[0])
        if version is None or len(names) > 2:
            return None
        listed = openstack.documents(version, bool(self.instance.user_data))
        if len(names) == 1:
            return _text("\n".join(listed))
        # Versions before LIBERTY serve network_data.json, but do not list it.
        if names[1] not in (*listed, "network_data.json"):
            return None
        if names[1] == "password":
            return _text(password_of(self.instance.system_metadata))
        body = openstack.body(names[1], self.instance, version, self.settings)
        return Document(body, _TYPES.get(names[1], JSON))


def is_password(path: str) -> bool:
    """Return True if a guest may POST its password to this path."""
    names = segments(path)
    version = openstack.resolve(names[1]) if len(names) == 3 and names[0] == "openstack" else None
    return version is not None and version >= openstack.GRIZZLY and names[2] == "password"


def _entries(node: Mapping[str, Any]) -> list[str]:
    """Return the lines of a listing. Public keys are listed with their names."""
    return [value.get("_name") or f"{name}/" if isinstance(value, Mapping) else name
            for name, value in sorted(node.items()) if not name.startswith("_")]


def _text(text: str) -> Document:
    return Document(text.encode())
