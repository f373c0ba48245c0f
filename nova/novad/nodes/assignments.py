"""The assignment of a node: the part of a deployment that a control node requests from another node."""

from __future__ import annotations

from typing import Literal

import msgspec

from nova.common.documents import Strict
from nova.common.errors import Invalid
from nova.novad.platform import Name, Platform, check


class Assignment(Strict, frozen=True, kw_only=True):
    """An assignment.

    ``coordinator``, ``control`` and ``number``: id and name of the control node, and its number of the deployment.
    ``platform``: the components of this node, with the addresses of components on other nodes. ``versions``: the
    components to deploy, or all if empty; ``names``: the components to roll back, or the secrets to renew; ``to``: the
    deployment to roll back to. ``volumes`` and ``secrets``: whether a removal includes them. ``values``: the values of
    the secrets that the components of the node use.
    """

    coordinator: str
    control: str
    number: int = 0
    kind: Literal["deploy", "rollback", "remove", "rotate"]
    platform: Platform
    versions: dict[Name, str] = {}
    names: tuple[Name, ...] = ()
    to: int | None = None
    volumes: bool = False
    secrets: bool = False
    values: dict[Name, str] = {}

    def __repr__(self) -> str:
        return f"Assignment({self.kind} {self.number} of {self.control})"  # without secrets

    def encode(self) -> bytes:
        return msgspec.json.encode(self)


def decode(data: bytes) -> Assignment:
    """Decode and check an assignment. Raises Invalid."""
    try:
        assignment = msgspec.json.decode(data, type=Assignment)
    except msgspec.MsgspecError as error:
        raise Invalid(f"Cannot decode the assignment (do both nodes run the same version of novad?): {error}") from None
    check(assignment.platform)
    return assignment
