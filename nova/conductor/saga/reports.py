"""Validation of reports of hosts. A report may change only what its step declares."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from nova import exception
from nova.conductor.saga.run import Run
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.order import StepReport
from nova.operations.framework.base import CONDUCTOR, Step

LOG = logging.getLogger(__name__)

# The column for the progress of the running step. Operation.noted handles the other values of an interim report.
_PROGRESS = "progress"
# Maximum size of the results of a step in bytes, since lists of actions read them, too. Above it the step fails.
_MAX_RESULTS = 256 * 1024
# Number of characters to which each field of a failure is cut, since lists of servers and actions read many failures.
_MAX_LENGTHS = {"kind": 255, "message": 2000, "inside": 4000, "details": 32 * 1024}


def narrowed(run: Run, report: StepReport) -> Step:
    """Remove the columns and results that the steps of the report do not declare; return the reported step. Raises
    StaleReport if this host does not have to execute the reported step now."""
    current, undo = run.step, run.action.undoing
    ordered = [] if current is None or current.place == CONDUCTOR else run.operation.ordered_with(current, undo)
    step = next((item for item in ordered if item.name == report.step), None)
    if step is None or report.undo != undo:
        raise exception.StaleReport(action=run.action.uuid, step=report.step, attempt=report.attempt)
    sets = {name for item in ordered for name in item.sets}
    if report.final:
        results = {name for item in ordered for name in (item.undo_results if undo else item.results)}
        report.results = _only(run, report.results, results)
        if len(msgspec.msgpack.encode(report.results)) > _MAX_RESULTS:
            report.results, report.failure = {}, Failure(
                message=f"The host reported more than {_MAX_RESULTS} bytes of results.", kind="InvalidInput")
    else:
        sets.add(_PROGRESS)
    report.changes = _only(run, report.changes, sets)
    return step


def failure_of(report: StepReport) -> Failure:
    """Return the failure of the report, with texts of bounded length. Raises ValidationError."""
    failure = msgspec.convert(report.failure, Failure)
    if not 400 <= failure.code <= 599:
        failure.code = 500
    for name, length in _MAX_LENGTHS.items():
        text = getattr(failure, name)
        if len(text) > length:  # the end of a traceback is its most useful part
            text = text[-length:] if name == "details" else text[:length]
        setattr(failure, name, text.replace("\0", "?"))  # PostgreSQL does not store NUL
    return failure


def check_power_state(changes: Mapping[str, Any]) -> None:
    """Raise InvalidInput for an unknown power state."""
    if "power_state" in changes and changes["power_state"] not in states.POWER_STATES:
        raise exception.InvalidInput(reason=f"unknown power state {changes['power_state']}")


def _only(run: Run, values: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    if values.keys() <= set(names):
        return values
    LOG.warning("[instance: %s] Ignored values in the report of %s on operation %s that its steps do not declare: %s",
                run.instance.uuid, run.action.owner, run.action.action, ", ".join(sorted(values.keys() - set(names))))
    return {name: value for name, value in values.items() if name in names}
