"""Comparison of the stored schedules of a group with the shares of a decision."""

from collections.abc import Iterable, Mapping

from nova.federator.store.schedules import Schedule


def shrinks(parts: Mapping[int, Schedule], shares: Mapping[str, int | None]) -> bool:
    """Return True if an object has fewer replicas in the shares than in the stored schedules."""
    return any((entry.replicas or 0) > (shares.get(entry.ref.key) or 0)
               for part in parts.values() for entry in part.entries)


def grows(parts: Mapping[int, Schedule], shares: Mapping[str, int | None]) -> bool:
    """Return True if the shares have an object or a replica that the stored schedules do not have."""
    stored = {entry.ref.key: entry.replicas or 0 for part in parts.values() for entry in part.entries}
    return any(key not in stored or (replicas or 0) > stored[key] for key, replicas in shares.items())


def retiring(parts: Mapping[int, Schedule]) -> bool:
    return any(part.retiring or part.deleting for part in parts.values())


def phases(schedule: Schedule) -> Iterable[str]:
    return [observed.phase for observed in schedule.report.objects]
