"""The course of an operation through its steps."""

import ast
import inspect
import textwrap

import msgspec
import pytest

from nova import exception
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.hosts.scheduling import RequestSpec, Selection
from nova.objects.servers import states
from nova.objects.servers.action import Failure
from nova.objects.servers.instance import Instance
from nova.operations import REGISTRY
from nova.operations.build import Build, BuildData
from nova.operations.framework.base import CONDUCTOR, Wait
from nova.operations.framework.rules import check
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


def test_operation_steps_run_in_definition_order():
    assert walked(build(host="a")) == ["place", "network", "disks", "start"]


@pytest.mark.parametrize(("data", "steps"), [
    ({"host": "a"}, ["look", "grow"]), ({"host": ""}, ["look"]),
    ({"host": "a", "awaited": True}, ["look", "grow", "hand_over"])])
def test_extend_volume_resizes_the_guest_and_notifies_the_waiting_service(data, steps):
    operation = REGISTRY["extend_volume"](instance(), data)
    assert walked(operation) == steps
    look, grow, hand_over = (operation.step_named(name) for name in ("look", "grow", "hand_over"))
    assert operation.before(grow) is look, "the waiting service must be notified of a failure"
    assert operation.before(hand_over) is None, "a completed resize must not be compensated"


class Outside:
    """An external allocator of interfaces; ``host`` is the host of their binding."""

    def __init__(self, server):
        self.instance, self.outside_interfaces, self.host = server, self, "b"

    def bind(self, host, *leaves):
        self.host = host

    def release(self):
        self.host = None


@pytest.mark.parametrize("name", ["resize", "migrate", "revert_resize", "evacuate", "live_migrate"])
@pytest.mark.parametrize(("deleted", "bound"), [(False, "c"), (True, None)])
def test_late_port_binding_is_corrected_to_the_current_host(name, deleted, bound):
    """The move from a to b was superseded, and the server was then evacuated to c or deleted."""
    ctl = Outside(instance(host="c", deleted=deleted))
    spec = RequestSpec(instance_uuids=["u"], project_id="p", flavor=FLAVOR)
    data = {"spec": msgspec.to_builtins(spec)} if issubclass(REGISTRY[name], Move) else {}
    operation = REGISTRY[name](ctl.instance, {**data, "source": "a", "host": "b"})
    operation.clean_up(operation.step_named("bind"), ctl)
    assert ctl.host == bound


@pytest.mark.parametrize(("name", "data", "steps"), [
    ("soft_delete", {}, ["power_off"]), ("soft_delete", {"migration": "m"}, ["look", "settle", "power_off"]),
    ("soft_delete", {"migration": "m", "source": "b"}, ["look", "forget", "settle", "power_off"]),
    ("restore", {}, ["power_on"]), ("reclaim", {}, ["destroy", "forget"]),
    ("reclaim", {"outside_volumes": True, "outside_interfaces": True},
     ["destroy", "let_go_of_volumes", "give_interfaces_back", "forget"])])
def test_soft_delete_restore_and_reclaim_steps(name, data, steps):
    assert walked(REGISTRY[name](instance(), {"host": "a", **data})) == steps


def test_conditional_steps_are_skipped():
    some = build(host="a", outside_volumes=True)
    assert walked(some) == ["make_volumes", "place", "bind_volumes", "network", "disks", "start", "complete_volumes"]
    assert some.before(Build.step_named("place")).name == "make_volumes"
    assert build(host="a").before(Build.step_named("place")) is None


def test_consecutive_steps_on_a_host_are_sent_in_a_single_order():
    operation = build(host="a")
    assert names(operation.batch(Build.step_named("network"), undo=False)) == ["network", "disks", "start"]


def test_compensations_are_batched_in_reverse_and_skip_steps_without_undo():
    operation = build(host="a")
    assert names(operation.batch(Build.step_named("disks"), undo=True)) == ["disks", "network"]


def test_step_without_a_host_is_skipped():
    delete = REGISTRY["delete"](instance(host=None), {"host": ""})
    assert delete.first().name == "forget"


def test_delete_of_a_server_on_a_host_starts_with_destroy():
    delete = REGISTRY["delete"](instance(), {"host": "a"})
    assert delete.first().name == "destroy"
    assert delete.after(delete.first()).name == "forget"


@pytest.mark.parametrize(("failure", "expected"), [
    (Failure(message="x", retry=True), True),
    (Failure(message="x", retry=False), False),
])
def test_build_is_rescheduled_only_after_a_retryable_failure(failure, expected):
    candidates = [Selection(node_uuid="1", host="b", node="b")]
    assert build(candidates=candidates, max_tries=3).may_retry(failure) is expected


def test_build_fails_after_max_attempts():
    operation = build(candidates=[Selection(node_uuid=str(n), host=str(n), node="n") for n in range(5)], max_tries=3)
    failure = Failure(message="x")
    assert [operation.may_retry(failure) for _ in range(3)] == [True, True, False]


def test_lost_claim_does_not_count_as_a_build_attempt():
    operation = build(candidates=[Selection(node_uuid="1", host="b", node="b")], max_tries=2)
    lost = Failure(message="x", kind="ClaimLost")
    assert all(operation.may_retry(lost) for _ in range(10))


def test_build_without_alternates_calls_the_scheduler_again():
    operation = build(candidates=[], selected=True, max_tries=3)
    assert operation.may_retry(Failure(message="x"))
    assert operation.data.selected is False


def allowed(name, **values):
    check(REGISTRY[name].rules, instance(**values), is_admin=False, host_up=lambda: True)
    return True


def test_operation_rules_allow_valid_server_states():
    assert allowed("stop")
    assert allowed("start", vm_state=states.STOPPED)
    assert allowed("reboot_hard", vm_state=states.ERROR)
    assert allowed("reboot_hard", task_state=states.REBOOTING)
    assert allowed("change_password")
    assert allowed("trigger_crash_dump", vm_state=states.RESIZED)
    assert allowed("restore", vm_state=states.SOFT_DELETED)
    assert allowed("soft_delete", vm_state=states.ERROR, task_state=states.REBOOTING)
    assert allowed("delete", task_state=states.SPAWNING, vm_state=states.BUILDING, launched_at=None)


@pytest.mark.parametrize(("name", "values", "error", "text"), [
    ("start", {}, exception.InstanceInvalidState, "Cannot 'start' instance u while it is in vm_state active"),
    ("stop", {"task_state": "rebooting"}, exception.InstanceInvalidState,
     "Cannot 'stop' instance u while it is in task_state rebooting"),
    ("stop", {"host": None}, exception.InstanceNotReady, "Instance u is not ready"),
    ("change_password", {"vm_state": states.PAUSED}, exception.InstanceInvalidState,
     "Cannot 'changePassword' instance u while it is in vm_state paused"),
    ("trigger_crash_dump", {"host": None, "vm_state": states.STOPPED}, exception.InstanceNotReady,
     "Instance u is not ready"),
    ("restore", {}, exception.InstanceInvalidState, "Cannot 'restore' instance u while it is in vm_state active"),
    ("soft_delete", {"launched_at": None}, exception.InstanceStateUnknown,
     "Instance u is in an invalid state for 'delete'"),
    ("pause", {"launched_at": None}, exception.InstanceStateUnknown, "Instance u is in an invalid state for 'pause'"),
    ("pause", {"locked_by": "owner"}, exception.InstanceIsLocked, "Instance u is locked"),
    ("reboot_soft", {"vm_state": states.STOPPED}, exception.InstanceInvalidState,
     "Cannot 'reboot' instance u while it is in vm_state stopped"),
])
def test_operation_rules_refuse_invalid_server_states(name, values, error, text):
    with pytest.raises(error) as raised:
        allowed(name, **values)
    assert str(raised.value) == text


def test_locked_server_can_be_changed_by_administrators():
    check(REGISTRY["pause"].rules, instance(locked_by="owner"), is_admin=True, host_up=lambda: True)


def test_rebuild_of_a_volume_backed_server_reimages_in_cinder():
    assert walked(REGISTRY["rebuild"](instance(), {"host": "a"})) == ["check", "replace", "start"]
    some = REGISTRY["rebuild"](instance(), {"host": "a", "outside_volumes": True})
    assert walked(some) == ["check", "let_go", "free", "write", "connect", "replace", "start", "complete"]
    assert some.before(some.step_named("start")).name == "free"


# --- snapshots and shelving----------------------------------------------------------------------------------
IMAGE = {"id": "i", "name": "n"}
SPEC = {"instance_uuids": ["u"], "project_id": "p", "flavor": msgspec.to_builtins(FLAVOR)}


def back_from(operation, name):
    """Return the compensations in order that run after a failure of the step."""
    found, step = [], operation.step_named(name)
    if step.undo and (step.place != "conductor" or step.external):
        found.append(step.undo)
    while (step := operation.before(step)) is not None:
        found.append(step.undo)
    return found


def test_create_image_steps_and_compensations():
    snapshot = REGISTRY["create_image"](instance(), {"host": "a", "image": IMAGE})
    assert walked(snapshot) == ["make_image", "capture", "upload"]
    assert back_from(snapshot, "upload") == ["discard", "unmake_image"]


def test_volume_backed_snapshot_quiesces_the_guest_only_on_request():
    snapshot = REGISTRY["create_volume_image"](instance(), {"host": "a", "image": IMAGE})
    assert walked(snapshot) == ["make_image", "take_snapshots", "publish"]
    assert back_from(snapshot, "publish") == ["drop_snapshots", "unmake_image"]
    snapshot = REGISTRY["create_volume_image"](instance(), {"host": "a", "image": IMAGE, "quiesce": True})
    assert walked(snapshot) == ["make_image", "freeze", "take_snapshots", "thaw", "publish"]
    assert back_from(snapshot, "publish") == ["drop_snapshots", "thaw", "unmake_image"]


class Snapshots:
    """An external volume service whose snapshots become available when ``made`` is True."""

    def __init__(self, server):
        self.instance, self.outside_volumes, self.made = server, self, False

    def now(self):
        return utcnow()

    def take_snapshots(self, _image):
        return self.made


def test_quiesce_lasts_until_the_snapshots_are_available():
    """A guest that is thawed earlier writes to its volumes while the service takes the snapshots."""
    ctl = Snapshots(instance())
    operation = REGISTRY["create_volume_image"](ctl.instance, {
        "host": "a", "image": IMAGE, "quiesce": True, "asked_at": utcnow()})
    for _poll in range(2):
        with pytest.raises(Wait):
            operation.take_snapshots(ctl)
    ctl.made = True
    operation.take_snapshots(ctl)
    assert operation.data.polls == 0


def test_failed_backup_rotation_keeps_the_new_backup():
    backup = REGISTRY["create_backup"](instance(), {"host": "a", "image": IMAGE, "rotation": 1})
    assert walked(backup) == ["make_image", "capture", "upload", "rotate"]
    assert back_from(backup, "upload") == ["discard", "unmake_image"]
    assert back_from(backup, "rotate") == []


@pytest.mark.parametrize(("data", "steps"), [
    ({"image": IMAGE}, ["make_image", "halt", "capture", "upload", "settle"]),
    ({"image": IMAGE, "offload": True, "former": "i"},
     ["make_image", "halt", "capture", "upload", "settle", "destroy", "forget", "drop_former"]),
    ({"offload": True, "unbinds_volumes": True, "unbinds_interfaces": True},
     ["halt", "settle", "destroy", "unbind_volumes", "unbind_interfaces", "forget"])])
def test_shelve_uploads_the_image_before_the_server_leaves_its_host(data, steps):
    assert walked(REGISTRY["shelve"](instance(), {"host": "a", **data})) == steps


def test_shelve_is_not_compensated_after_the_upload():
    shelve = REGISTRY["shelve"](instance(), {"host": "a", "image": IMAGE, "offload": True})
    assert back_from(shelve, "upload") == ["discard", "restart", "unmake_image"]
    assert back_from(shelve, "settle") == ["discard", "restart", "unmake_image"]
    for step in ("destroy", "forget"):
        assert back_from(shelve, step) == []


def test_unshelve_starts_in_place_or_builds_on_a_new_host():
    here = REGISTRY["unshelve"](instance(), {"spec": SPEC, "host": "a", "on_host": True, "drops": "i"})
    assert walked(here) == ["power_on", "settle", "drop_image"]
    anew = REGISTRY["unshelve"](instance(host=None), {
        "spec": SPEC, "host": "b", "offloaded": True, "saved_in": "i", "drops": "i", "plugs": ["p"],
        "binds_volumes": True, "binds_interfaces": True})
    assert walked(anew) == [
        "find_image", "place", "bind_volumes", "bind_interfaces", "network", "disks", "start", "plugged", "go",
        "complete_volumes", "settle", "drop_image"]
    assert back_from(anew, "complete_volumes") == [
        "wipe", "unplug", "unbind_interfaces", "unbind_volumes", "unplace"]
    assert back_from(anew, "drop_image") == []


@pytest.mark.parametrize(("step", "host", "bound"), [
    ("bind_interfaces", "c", "c"), ("bind_interfaces", None, None), ("bind_volumes", "c", "b"),
    ("bind_volumes", None, None)])
def test_late_binding_of_unshelve_is_corrected_to_the_current_host(step, host, bound):
    class Outside:
        def __init__(self):
            self.instance = instance(host=host)
            self.outside_interfaces = self.outside_volumes = self
            self.bound = "b"

        def bind(self, where):
            self.bound = where

        def unbind(self):
            self.bound = None

        def disconnect(self):
            self.bound = None

    ctl = Outside()
    unshelve = REGISTRY["unshelve"](ctl.instance, {"spec": SPEC, "host": "b"})
    unshelve.clean_up(unshelve.step_named(step), ctl)
    assert ctl.bound == bound


def _called(function):
    """Return the names of the functions called by a function and by its helpers of the same module."""
    seen, found, left = set(), set(), [function]
    while left:
        this = inspect.unwrap(left.pop())
        if this in seen:
            continue
        seen.add(this)
        for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(this)))):
            if isinstance(node, ast.Call):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
                found.add(ast.unparse(node.func))
                helper = this.__globals__.get(name)
                if inspect.isfunction(helper) and helper.__module__ == this.__module__:
                    left.append(helper)
    return found


_CONNECTS = {"host.connected", "host.connect_volumes", "on_host.connect"}


def test_exactly_the_steps_that_connect_volumes_get_volume_keys():
    marked, connects = set(), set()
    for operation in REGISTRY.values():
        for step in operation.steps:
            for method in (step.method, step.undo) if step.place != CONDUCTOR else ():
                if method:
                    function = getattr(operation, method)
                    name = f"{operation.name}.{method}"
                    marked |= {name} if hasattr(function, "__connects_volumes__") else set()
                    connects |= {name} if _called(function) & _CONNECTS else set()
    assert marked == connects
    assert {"build.start", "reboot_hard.reboot", "live_migrate.make_room", "swap_volume.check_swapped"} <= marked
    assert not {"pause.pause", "delete.destroy", "live_migrate.migrate"} & marked


def test_order_contains_volume_keys_if_any_of_its_steps_needs_keys():
    operation = build(host="a")
    steps = {step.name: step for step in operation.steps}
    assert operation.needs_keys(steps["network"], False), "later steps on the same host need the keys"
    assert not operation.needs_keys(steps["start"], True), "compensations need no keys"
