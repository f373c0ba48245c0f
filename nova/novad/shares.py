"""A node's share of a deployment: what a control node's novad wants of another one."""

from __future__ import annotations

from typing import Literal

import msgspec

from nova.novad.errors import Invalid
from nova.novad.platform import Name, Part, Platform, check


class Share(Part, frozen=True, kw_only=True):
    """``coordinator``, ``control`` and ``number``: id and name of the control node, and its number of the deployment.

    ``platform``: what this node is to run, with the addresses of what runs elsewhere. ``versions``: the components to
    deploy, all if there are none; ``names``: those to go back, or the secrets to renew; ``to``: the number of a
    deployment to go back to. ``volumes`` and ``secrets`` go with a removal. ``values``: of secrets that the node's
    components use.
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
        return f"Share({self.kind} {self.number} of {self.control})"  # without values

    def packed(self) -> bytes:
        return msgspec.json.encode(self)


def unpacked(data: bytes) -> Share:
    """Raises Invalid."""
    try:
        share = msgspec.json.decode(data, type=Share)
    except msgspec.MsgspecError as error:
        raise Invalid(f"The share of a deployment is not understood (are both novads of the same version?): {error}") \
            from None
    check(share.platform)
    return share
