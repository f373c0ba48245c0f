"""Rules of an operation: the instance states in which the API accepts it."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NoReturn

from nova import exception
from nova.objects.requirements.properties import tpm_secret_security
from nova.objects.servers import states
from nova.objects.servers.instance import Instance

ANY_TPM = frozenset({"user", "deployment", "host"})  # all values of hw:tpm_secret_security


@dataclasses.dataclass(frozen=True)
class Rules:
    """Conditions under which an operation may start. A set that is None allows all states."""

    label: str
    vm_states: frozenset[str] | None = None
    task_states: frozenset[str | None] | None = frozenset({None})
    lock: bool = True
    host: Literal["", "needed", "up"] = ""
    launched: bool = True
    preempts: bool = False  # the operation supersedes the running operation and runs the compensations of that one
    keeps_guest: bool = False  # with ``preempts``: the guest stays as it is, with the devices that it has
    # The operation runs again, from its first step, after an operation that superseded it and keeps the guest. All
    # steps of a repeated operation can run twice, and none has a compensation.
    repeated: bool = False
    # Task states of operations that must not be superseded. A delete cannot be compensated.
    yields_to: frozenset[str] = frozenset({states.DELETING})
    beside: bool = False  # the operation does not change task_state and queues behind the running operation
    without_shares: bool = False  # the operation is refused for servers with shares
    without_tpm: frozenset[str] = frozenset()  # values of hw:tpm_secret_security with which the operation is refused
    release: int = 0  # minimum service version of nova-compute on the server's host; older versions lack the steps


def check(rules: Rules, instance: Instance, is_admin: bool, host_up: Callable[[], bool]) -> None:
    """Check that an operation may start. Clients rely on the order. Raises ForbiddenWithTpm, ForbiddenWithShares,
    InstanceIsLocked, InstanceNotReady, InstanceInvalidState, InstanceStateUnknown, ComputeServiceUnavailable."""
    if rules.without_tpm and tpm_secret_security(instance.flavor, instance.image) in rules.without_tpm:
        raise exception.ForbiddenWithTpm(method=rules.label, instance_uuid=instance.uuid)
    if rules.without_shares and instance.shares:
        raise exception.ForbiddenWithShares(method=rules.label, instance_uuid=instance.uuid)
    if rules.lock and instance.locked and not is_admin:
        raise exception.InstanceIsLocked(instance_uuid=instance.uuid)
    if rules.host == "needed" and not instance.host:
        raise exception.InstanceNotReady(instance_id=instance.uuid)
    _check_state(rules, instance, "vm_state", instance.vm_state, rules.vm_states)
    _check_state(rules, instance, "task_state", instance.task_state, rules.task_states)
    if instance.task_state in rules.yields_to:
        _refuse(rules, instance, "task_state", instance.task_state)
    if rules.launched and instance.launched_at is None:
        raise exception.InstanceStateUnknown(instance_uuid=instance.uuid, method=rules.label)
    if rules.host == "up" and not (instance.host and host_up()):
        raise exception.ComputeServiceUnavailable()


def _check_state(rules: Rules, instance: Instance, attr: str, state: str | None,
                 allowed: frozenset[Any] | None) -> None:
    if allowed is None or state in allowed:
        return
    if state is None:
        raise exception.InstanceStateUnknown(instance_uuid=instance.uuid, method=rules.label)
    _refuse(rules, instance, attr, state)


def _refuse(rules: Rules, instance: Instance, attr: str, state: str) -> NoReturn:
    raise exception.InstanceInvalidState(method=rules.label, instance_uuid=instance.uuid, attr=attr, state=state)

