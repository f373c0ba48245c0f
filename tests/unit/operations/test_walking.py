"""How an operation walks through its steps."""

import msgspec
import pytest

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import utcnow
from nova.objects.flavor import Flavor
from nova.objects.instance import Instance
from nova.objects.scheduling import RequestSpec, Selection
from nova.operations import REGISTRY
from nova.operations.base import check
from nova.operations.build import Build, BuildData
from nova.operations.moves import Move

FLAVOR = Flavor(flavorid="1", name="m1", memory_mb=128, vcpus=1)


def instance(**values):
    values = {"vm_state": states.ACTIVE, "launched_at": utcnow(), "host": "a", **values}
    return Instance(uuid="u", project_id="p", user_id="u", display_name="n", hostname="n", flavor=FLAVOR,
                    created_at=utcnow(), **values)


def build(**data):
    spec = RequestSpec(instance_uuids=["u"], project_id="p", flavor=FLAVOR)
    return Build(instance(host=None), msgspec.to_builtins(BuildData(spec=spec, **data)))


def names(steps):
    return [step.name for step in steps]


def walked(operation):
    found = [operation.first()]
    while (follower := operation.after(found[-1])) is not None:
        found.append(follower)
    return names(found)


def test_steps_are_walked_in_the_order_they_are_written():
    assert walked(build(host="a")) == ["place", "network", "disks", "start"]


class Outside:
    """Where interfaces are asked for; ``host`` is where they are bound."""

    def __init__(self, server):
        self.instance, self.outside_interfaces, self.host = server, self, "b"

    def bind(self, host):
        self.host = host

    def release(self):
        self.host = None


@pytest.mark.parametrize("name", ["resize", "migrate", "revert_resize", "evacuate", "live_migrate"])
@pytest.mark.parametrize(("deleted", "bound"), [(False, "c"), (True, None)])
def test_a_binding_that_comes_late_is_put_right_by_where_the_server_is_now(name, deleted, bound):
    """It left a, its move to b was superseded, and somebody evacuated it to c since, or deleted it."""
    ctl = Outside(instance(host="c", deleted=deleted))
    spec = RequestSpec(instance_uuids=["u"], project_id="p", flavor=FLAVOR)
    data = {"spec": msgspec.to_builtins(spec)} if issubclass(REGISTRY[name], Move) else {}
    operation = REGISTRY[name](ctl.instance, {**data, "source": "a", "host": "b"})
    operation.take_back(operation.step_named("bind"), ctl)
    assert ctl.host == bound


def test_steps_that_are_for_some_only_are_left_out_for_the_others():
    some = build(host="a", outside_volumes=True)
    assert walked(some) == ["make_volumes", "place", "bind_volumes", "network", "disks", "start", "complete_volumes"]
    assert some.before(Build.step_named("place")).name == "make_volumes"
    assert build(host="a").before(Build.step_named("place")) is None


def test_consecutive_steps_of_a_host_travel_together():
    operation = build(host="a")
    assert names(operation.batch(Build.step_named("network"), undo=False)) == ["network", "disks", "start"]


def test_compensations_travel_together_backwards_and_skip_steps_without_one():
    operation = build(host="a")
    assert names(operation.batch(Build.step_named("disks"), undo=True)) == ["disks", "network"]


def test_a_step_without_a_host_is_left_out():
    delete = REGISTRY["delete"](instance(host=None), {"host": ""})
    assert delete.first().name == "forget"


def test_a_delete_of_a_server_on_a_host_begins_there():
    delete = REGISTRY["delete"](instance(), {"host": "a"})
    assert delete.first().name == "destroy"
    assert delete.after(delete.first()).name == "forget"


@pytest.mark.parametrize(("failure", "expected"), [
    (Failure(message="x", retry=True), True),
    (Failure(message="x", retry=False), False),
])
def test_a_build_goes_on_elsewhere_only_when_another_host_may_do_better(failure, expected):
    candidates = [Selection(node_uuid="1", host="b", node="b")]
    assert build(candidates=candidates, max_tries=3).may_retry(failure) is expected


def test_a_build_gives_up_after_its_tries():
    operation = build(candidates=[Selection(node_uuid=str(n), host=str(n), node="n") for n in range(5)], max_tries=3)
    failure = Failure(message="x")
    assert [operation.may_retry(failure) for _ in range(3)] == [True, True, False]


def test_a_lost_claim_is_no_try():
    operation = build(candidates=[Selection(node_uuid="1", host="b", node="b")], max_tries=2)
    lost = Failure(message="x", kind="ClaimLost")
    assert all(operation.may_retry(lost) for _ in range(10))


def test_out_of_alternates_the_scheduler_is_asked_again():
    operation = build(candidates=[], selected=True, max_tries=3)
    assert operation.may_retry(Failure(message="x"))
    assert operation.data.selected is False


def allowed(name, **values):
    check(REGISTRY[name].rules, instance(**values), is_admin=False, host_up=lambda: True)
    return True


def test_rules_let_through_what_the_facts_allow():
    assert allowed("stop")
    assert allowed("start", vm_state=states.STOPPED)
    assert allowed("reboot_hard", vm_state=states.ERROR)
    assert allowed("reboot_hard", task_state=states.REBOOTING)
    assert allowed("delete", task_state=states.SPAWNING, vm_state=states.BUILDING, launched_at=None)


@pytest.mark.parametrize(("name", "values", "error", "text"), [
    ("start", {}, exception.InstanceInvalidState, "Cannot 'start' instance u while it is in vm_state active"),
    ("stop", {"task_state": "rebooting"}, exception.InstanceInvalidState,
     "Cannot 'stop' instance u while it is in task_state rebooting"),
    ("stop", {"host": None}, exception.InstanceNotReady, "Instance u is not ready"),
    ("pause", {"launched_at": None}, exception.InstanceStateUnknown, "Instance u is in an invalid state for 'pause'"),
    ("pause", {"locked_by": "owner"}, exception.InstanceIsLocked, "Instance u is locked"),
    ("reboot_soft", {"vm_state": states.STOPPED}, exception.InstanceInvalidState,
     "Cannot 'reboot' instance u while it is in vm_state stopped"),
])
def test_rules_refuse_with_the_text_of_the_facts(name, values, error, text):
    with pytest.raises(error) as raised:
        allowed(name, **values)
    assert str(raised.value) == text


def test_a_lock_does_not_bind_administrators():
    check(REGISTRY["pause"].rules, instance(locked_by="owner"), is_admin=True, host_up=lambda: True)
