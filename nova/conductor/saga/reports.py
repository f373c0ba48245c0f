"""What a host's report of a step may say: what the step declares, and nothing else of the server."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from nova import exception
from nova.conductor.saga.run import Run
from nova.objects.order import StepReport
from nova.operations.base import CONDUCTOR, Step

LOG = logging.getLogger(__name__)

# How far the running step is; the other values of its progress are for the operation (Operation.noted).
_PROGRESS = "progress"


def narrowed(run: Run, report: StepReport) -> Step:
    """Leave out of the report what the host was not asked for; returns the step of which it tells.

    Raises StaleReport when the current order has no such step.
    """
    current, undo = run.step, run.action.undoing
    ordered = [] if current is None or current.place == CONDUCTOR else run.operation.ordered_with(current, undo)
    step = next((each for each in ordered if each.name == report.step), None)
    if step is None or report.undo != undo:
        raise exception.StaleReport(action=run.action.uuid, step=report.step, attempt=report.attempt)
    sets = {name for each in ordered for name in each.sets}
    if report.final:
        results = {name for each in ordered for name in (each.undo_results if undo else each.results)}
        report.results = _only(run, report.results, results)
    else:
        sets.add(_PROGRESS)
    report.changes = _only(run, report.changes, sets)
    return step


def _only(run: Run, said: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    if said.keys() <= set(names):
        return said
    LOG.warning("[instance: %s] Left out of the report of host %s on %s, as it may not say that: %s", run.instance.uuid,
                run.action.owner, run.action.action, ", ".join(sorted(said.keys() - set(names))))
    return {name: value for name, value in said.items() if name in names}
