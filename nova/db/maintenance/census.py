"""Count servers, services and operations for metrics, in the database."""

import collections
import datetime

import sqlalchemy as sa

from nova.db import liveness, tables

ACTIONS = tables.actions
SERVICES = tables.services

Counts = dict[tuple[str, ...], float]


def unfinished(connection: sa.Connection, now: datetime.datetime) -> Counts:
    """Return {(operation, state): number of running actions}; states as in the metric nova_actions_unfinished."""
    groups = (sa.select(ACTIONS.c.operation.label("operation"), state_of(now).label("state"))
              .where(ACTIONS.c.outcome.is_(None)).subquery())
    counts = connection.execute(
        sa.select(groups.c.operation, groups.c.state, sa.func.count()).group_by(groups.c.operation, groups.c.state))
    return {(operation or "none", state): count for operation, state, count in counts}


def state_of(now: datetime.datetime) -> sa.ColumnElement[str]:
    """Return the state of a running action: waiting, overdue, undoing, or its executor (host, conductor)."""
    return sa.case(
        (ACTIONS.c.owner.is_(None), "waiting"), (ACTIONS.c.lease_until < now, "overdue"),
        (ACTIONS.c.undoing == sa.true(), "undoing"), (ACTIONS.c.owner.like("compute@%"), "host"), else_="conductor")


def services(connection: sa.Connection) -> Counts:
    """Return {(binary, state): number of services}: up or down, and in addition disabled."""
    up = sa.case((liveness.up(), 1), else_=0)
    groups = sa.select(SERVICES.c.binary.label("binary"), SERVICES.c.disabled.label("disabled"),
                       up.label("up")).subquery()
    rows = connection.execute(
        sa.select(groups.c.binary, groups.c.up, groups.c.disabled, sa.func.count())
        .group_by(groups.c.binary, groups.c.up, groups.c.disabled))
    counts: collections.Counter[tuple[str, ...]] = collections.Counter()
    for binary, is_up, disabled, count in rows:
        # Include zero: an alert on "down" must see the value return to it.
        states = {"up": is_up, "down": not is_up, "disabled": disabled}
        counts.update({(binary, state): count if holds else 0 for state, holds in states.items()})
    return dict(counts)
