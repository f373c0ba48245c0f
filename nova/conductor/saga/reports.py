"""Validation of a host's report of a step: it may contain what the step declares, and nothing else of the server."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from nova import exception
from nova.conductor.saga.run import Run
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.order import StepReport
from nova.operations.base import CONDUCTOR, Step

LOG = logging.getLogger(__name__)

# How far the running step is; the other values of its progress are for the operation (Operation.noted).
_PROGRESS = "progress"
# Bytes of what a step has for those that follow: lists of actions read it, too.
_RESULTS = 256 * 1024
# Characters of a failure: they are in rows that lists of servers and actions show, many at a time.
_MOST = {"kind": 255, "message": 2000, "inside": 4000, "details": 32 * 1024}


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
        if len(msgspec.msgpack.encode(report.results)) > _RESULTS:
            report.results, report.failure = {}, Failure(
                message=f"Its host has reported more than {_RESULTS} bytes.", kind="InvalidInput")
    else:
        sets.add(_PROGRESS)
    report.changes = _only(run, report.changes, sets)
    return step


def failure_of(report: StepReport) -> Failure:
    """Return why the step failed, with a text of bounded length. Raises ValidationError."""
    told = msgspec.convert(report.failure, Failure)
    if not 400 <= told.code <= 599:
        told.code = 500
    for name, most in _MOST.items():
        text = getattr(told, name)
        if len(text) > most:  # what a traceback ends with says most
            text = text[-most:] if name == "details" else text[:most]
        setattr(told, name, text.replace("\0", "?"))  # NUL is in no text of PostgreSQL
    return told


def check_power_state(changes: Mapping[str, Any]) -> None:
    """Raises InvalidInput for a state that no guest is in."""
    if "power_state" in changes and changes["power_state"] not in states.POWER_STATES:
        raise exception.InvalidInput(reason="there is no such power state")


def _only(run: Run, said: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    if said.keys() <= set(names):
        return said
    LOG.warning("[instance: %s] Left out of the report of host %s on %s, as it may not say that: %s", run.instance.uuid,
                run.action.owner, run.action.action, ", ".join(sorted(said.keys() - set(names))))
    return {name: value for name, value in said.items() if name in names}
