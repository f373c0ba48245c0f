"""The arrangement of a guest's virtual CPUs in sockets, cores and threads."""

import dataclasses

from nova import exception
from nova.objects.requirements.properties import Properties

_NO_LIMIT = 65536
_PARTS = ("sockets", "cores", "threads")


@dataclasses.dataclass(frozen=True, order=True)
class Topology:
    sockets: int
    cores: int
    threads: int


def topology(wishes: Properties) -> Topology | None:
    """Return the CPU topology within the limits that fulfils most preferences (flavor before image). None: nothing is
    requested, and the hypervisor makes every CPU a socket. Raises InvalidInput if the image requests more than the
    flavor allows, or no topology has exactly the flavor's number of CPUs."""
    limits = [_limit(wishes, part) for part in _PARTS]
    preferred = [_preferred(wishes, part) for part in _PARTS]
    if limits == [_NO_LIMIT] * 3 and preferred == [None] * 3:
        return None
    fitting = [candidate for candidate in _arrangements(wishes.vcpus)
               if all(have <= limit for have, limit in zip(dataclasses.astuple(candidate), limits, strict=True))]
    if not fitting:
        raise exception.InvalidInput(
            reason=f"the CPU topology limits of flavor and image leave no way to arrange {wishes.vcpus} CPUs")

    # Among topologies that fulfil equally many preferences, prefer more sockets. Threads are used only on request.
    return max(fitting, key=lambda candidate: (
        sum(want == have for want, have in zip(preferred, dataclasses.astuple(candidate), strict=True)), candidate))


def _arrangements(vcpus: int) -> list[Topology]:
    arrangements = []
    for sockets in range(1, vcpus + 1):
        if vcpus % sockets == 0:
            arrangements += [Topology(sockets, cores, vcpus // sockets // cores)
                             for cores in range(1, vcpus // sockets + 1) if vcpus // sockets % cores == 0]
    return arrangements


def _limit(wishes: Properties, part: str) -> int:
    flavor = wishes.spec_number(f"hw:cpu_max_{part}", 1)
    image = wishes.image_number(f"hw_cpu_max_{part}", 1)
    if flavor and image and image > flavor:
        raise exception.InvalidInput(reason=f"hw_cpu_max_{part}={image} is more than the flavor allows ({flavor})")
    return image or flavor or _NO_LIMIT


def _preferred(wishes: Properties, part: str) -> int | None:
    flavor = wishes.spec_number(f"hw:cpu_{part}", 1)
    image = wishes.image_number(f"hw_cpu_{part}", 1)
    limit = _limit(wishes, part)
    if image and image > limit:
        raise exception.InvalidInput(reason=f"hw_cpu_{part}={image} is more than the flavor allows ({limit})")
    return flavor or image
