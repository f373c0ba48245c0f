"""EC2 ids of the objects that the REST API shows to a caller."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from nova.context import RequestContext
from nova.ec2.errors import Ec2Error
from nova.objects.accounts.ec2_id import INSTANCE, MOST, Ec2Id
from nova.rpcapi.accounts import Ec2Ids

# Kind of id -> code of the error for an object that does not exist, and for a malformed id.
MISSING = {
    INSTANCE: "InvalidInstanceID.NotFound", "ami": "InvalidAMIID.NotFound", "vol": "InvalidVolume.NotFound",
    "snap": "InvalidSnapshot.NotFound", "sg": "InvalidGroup.NotFound", "eipalloc": "InvalidAllocationID.NotFound"}
MALFORMED = {
    INSTANCE: "InvalidInstanceID.Malformed", "ami": "InvalidAMIID.Malformed", "vol": "InvalidVolumeID.Malformed",
    "snap": "InvalidSnapshotID.Malformed", "sg": "InvalidGroupId.Malformed",
    "eipalloc": "InvalidAllocationID.Malformed", "eipassoc": "InvalidAssociationID.NotFound"}


def text(kind: str, number: int) -> str:
    return f"{kind}-{number:08x}"


def missing(kind: str, number: int) -> Ec2Error:
    return Ec2Error(MISSING[kind], f"The ID '{text(kind, number)}' does not exist")


class Ids:
    """The ids of one EC2 request. ``visible``: by kind, a function that returns the uuids of all objects that the
    REST API shows to the caller."""

    def __init__(self, conductor: Ec2Ids, ctx: RequestContext,
                 visible: Mapping[str, Callable[[], Iterable[str]]]) -> None:
        self._conductor, self._ctx, self._visible = conductor, ctx, visible

    def assign(self, kind: str, uuids: Iterable[str]) -> dict[str, Ec2Id]:
        """Return the ids of objects by uuid; only objects that the REST API has shown may be passed."""
        distinct = list(dict.fromkeys(uuid for uuid in uuids if uuid))
        assigned: dict[str, Ec2Id] = {}
        for start in range(0, len(distinct), MOST):
            for item in self._conductor.assign(self._ctx, kind, distinct[start:start + MOST]):
                assigned[item.uuid] = item
        return assigned

    def texts(self, kind: str, uuids: Iterable[str]) -> dict[str, str]:
        """Return the id texts of objects by uuid."""
        return {uuid: text(kind, item.number) for uuid, item in self.assign(kind, uuids).items()}

    def uuids(self, kind: str, numbers: Sequence[int]) -> list[str]:
        """Return the uuids of ids, in the order of ``numbers``. Raises Ec2Error for an unknown id.

        The objects may belong to other projects: request each of them from the REST API with the caller's token before
        using it. An id whose row was purged is searched among the objects that the caller can see.
        """
        wanted = list(dict.fromkeys(numbers))
        by_number = {item.number: item.uuid for item in self._conductor.resolve(self._ctx, kind, wanted)}
        if kind != INSTANCE and any(number not in by_number for number in wanted):
            shown = self.assign(kind, self._visible[kind]()).values()
            by_number |= {item.number: item.uuid for item in shown if item.number in wanted}
        for number in wanted:
            if number not in by_number:
                raise missing(kind, number)
        return [by_number[number] for number in numbers]

    def uuid(self, kind: str, number: int) -> str:
        return self.uuids(kind, [number])[0]
