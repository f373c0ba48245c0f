"""The limits of CPU time, disk rates and random numbers of a flavor (``quota:*``, ``hw_rng:*``), checked for sense.

The ranges are those that libvirt and QEMU accept: a server with another value could start on no host.
"""

from nova import exception
from nova.objects.requirements.properties import Properties

# Zero stands for no limit.
_RANGES = {
    "quota:cpu_shares": (2, 262_144),
    "quota:cpu_period": (1_000, 1_000_000),
    "quota:cpu_quota": (1_000, 17_592_186_044_415),
    **{f"quota:disk_{which}_{what}_sec": (1, 10**15)
       for which in ("total", "read", "write") for what in ("bytes", "iops")},
    "hw_rng:rate_bytes": (1, 2**32 - 1),
    "hw_rng:rate_period": (1, 2**32 - 1),
}


def check(wishes: Properties) -> None:
    """Raise InvalidInput for a limit out of range, and for limits that exclude each other."""
    values = {name: wishes.spec_number(name, low=-1 if name == "quota:cpu_quota" else 0) or 0 for name in _RANGES}
    for name, (low, high) in _RANGES.items():
        if values[name] > 0 and not low <= values[name] <= high:
            raise exception.InvalidInput(reason=f"{name}={values[name]} is not between {low} and {high}")
    for what in ("bytes", "iops"):
        total = f"quota:disk_total_{what}_sec"
        for which in ("read", "write"):
            part = f"quota:disk_{which}_{what}_sec"
            if values[total] and values[part]:
                raise exception.InvalidInput(reason=f"{total} and {part} exclude each other")
