"""Shared and dedicated CPUs of a host."""

from __future__ import annotations

from collections.abc import Collection

from nova import exception
from nova.conf import CONF
from nova.objects.requirements.guest_numa import cpu_mask


def split(cpus: Collection[int]) -> tuple[list[int], list[int]]:
    """Return the (shared, dedicated) CPUs of the host as configured in [compute]. Raises InvalidInput, which names the
    option."""
    dedicated = _of("cpu_dedicated_set", CONF.compute.cpu_dedicated_set, cpus)
    shared = _of("cpu_shared_set", CONF.compute.cpu_shared_set, cpus)
    if shared is None:
        shared = set() if dedicated else set(cpus)
    both = sorted(shared & (dedicated or set()))
    if both:
        raise exception.InvalidInput(reason="[compute]cpu_shared_set and [compute]cpu_dedicated_set both have CPU "
                                            f"{both[0]}")
    return sorted(shared), sorted(dedicated or ())


def _of(option: str, value: str | None, cpus: Collection[int]) -> set[int] | None:
    if not value:
        return None
    try:
        named = cpu_mask(value, max(cpus, default=-1) + 1)
    except exception.InvalidInput as error:
        raise exception.InvalidInput(reason=f"[compute]{option}: {error.kwargs['reason']}") from error
    if not named & set(cpus):
        raise exception.InvalidInput(reason=f"[compute]{option} = {value} names no CPU of this host")
    return named & set(cpus)
