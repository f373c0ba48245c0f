"""Accepting an operation on a server that exists: checked and written in one transaction, or refused."""

from __future__ import annotations

import logging
from typing import Any

import sqlalchemy as sa

from nova import context
from nova.conductor.engine import Engine
from nova.conductor.run import Run
from nova.db import actions, instances, services
from nova.objects.action import Action
from nova.objects.instance import Instance
from nova.operations import REGISTRY
from nova.operations.base import check

LOG = logging.getLogger(__name__)


def start(engine: Engine, ctx: context.RequestContext, uuid: str, name: str, request: dict[str, Any],
          project_id: str | None = None) -> Action:
    """Promise the operation ``name`` (a row), then run its steps in the background.

    Raises InstanceNotFound and what :func:`nova.operations.base.check` raises.
    """
    operation = REGISTRY[name]
    tried: list[Action] = []
    preemption = actions.Preemption()

    def accept(connection: sa.Connection) -> tuple[Action, Instance]:
        preemption.begin(connection)
        instance = instances.lock(connection, uuid, project_id)
        check(operation.rules, instance, bool(ctx.is_admin),
              lambda: services.host_up(connection, instance.host or ""))
        action = engine.new_action(ctx, operation, instance, operation.new_data(instance, request))
        if instance.action_uuid:
            preemption.supersede(connection, instance.action_uuid)
        actions.follow(connection, action)
        changes = {"action_uuid": action.uuid, "task_state": operation.task_state}
        instances.update(connection, uuid, changes)
        instance.action_uuid, instance.task_state = action.uuid, operation.task_state
        tried.append(action)
        return action, instance

    def accepted(connection: sa.Connection) -> tuple[Action, Instance] | None:
        found = actions.get(connection, tried[-1].uuid)
        return (found, instances.get(connection, uuid, deleted=True)) if found else None

    action, instance = engine.core.db.write(accept, accepted)
    LOG.info("[instance: %s] %s accepted", uuid, action.action)
    engine.submit(ctx, Run(action, instance))
    return action
