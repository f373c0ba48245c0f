"""Standby: steps of clusters, copies of clusters, and decisions on clusters in standby (facts chapter 9)."""

from __future__ import annotations

import asyncio
import pathlib
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.common.errors import Invalid
from nova.federator.api.names import NAME_LABEL
from nova.federator.api.provider import ProviderError, Target
from nova.federator.api.types import Cluster, Decision, Item, Ref, Spread
from nova.federator.controllers.providers import HELPER, ExecProvider, Providers
from nova.federator.scheduling.decide import decide
from nova.federator.scheduling.policy import of_annotations
from nova.federator.scheduling.standby import (
    Phase,
    Settings,
    State,
    Step,
    clone,
    may_copy,
    next_step,
)
from tests.unit.federator.worlds import claims, cluster, group, item, node, policy

WEB = "Deployment.apps/shop/web"
SETTINGS = Settings(enabled=True, idle_seconds=5, wake_seconds=30, retry_seconds=20)
A, B = cluster("a"), cluster("b")


def asleep(name: str, *nodes: Any, problem: str = "", **labels: str) -> Cluster:
    return Cluster(name, {NAME_LABEL: name, **labels}, ready=False, reachable=False, standby=True, problem=problem,
                   nodes=nodes or (node(),))


def run(*clusters: Any, current: Any = None, plan: Any = None, objects: Any = None, **options: Any) -> Decision:
    return decide(objects or group(), plan or policy(), clusters, claims(*clusters), current or {}, **options)


class World:
    """A cluster with its provider, one second per tick. ``runs``: its nodes run; a restart of the scheduler forgets
    what only the process stores."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.now = self.since = self.idle_since = self.retry_at = 0.0
        self.phase: Phase = "Active"
        self.runs, self.deleted = True, False
        self.wanted = self.busy = self.called = False
        self.calling: tuple[Step, float] | None = None
        self.steps: list[Step] = []

    def state(self) -> State:
        return State(phase=self.phase, deleted=self.deleted, elapsed=self.now - self.since,
                     idle=None if self.busy else self.now - self.idle_since, wanted=self.wanted, healthy=self.runs,
                     back=self.runs and self.phase in ("Waking", "Failed"), calling=self.calling is not None,
                     called=self.called, due=self.now >= self.retry_at)

    def enter(self, phase: Phase) -> None:
        if phase == "Suspending":
            self.deleted = self.settings.delete
        self.phase, self.since, self.called, self.retry_at = phase, self.now, False, 0.0
        self.idle_since = self.now

    def tick(self, event: str) -> None:
        self.now += 1.0
        self.wanted = {"want": True, "leave": False}.get(event, self.wanted)
        if event in ("start", "end") and self.phase == "Active" and self.runs:
            self.busy, self.idle_since = event == "start", self.now
        if event == "restart":
            self.calling, self.called, self.retry_at = None, False, 0.0
        if self.calling is not None:
            self.finish(*self.calling, event)
        elif step := next_step(self.state(), self.settings):
            self.check(step)
            self.steps.append(step)
            if step.action in ("enter", "begin"):
                self.enter(step.phase)
            else:
                self.calling = step, self.now

    def check(self, step: Step) -> None:
        """Nothing that is used is stopped; every call belongs to the phase that is stored."""
        if step.action in ("begin", "suspend", "delete"):
            assert not self.wanted
            assert not self.busy
            assert self.settings.enabled
        if step.action == "begin":
            assert self.now - self.idle_since >= self.settings.idle_seconds
        assert (step.action in ("suspend", "delete")) <= (self.phase == "Suspending")
        assert (step.action in ("resume", "create")) <= (self.phase == "Waking")

    def finish(self, step: Step, since: float, event: str) -> None:
        if event == "fail" or self.now - since > 5:
            self.calling, self.retry_at = None, self.now + 2
        elif event == "succeed":
            self.calling, self.runs, self.called = None, step.phase == "Waking", True
            if step.phase == "Suspended":
                self.enter("Suspended")


EVENTS = st.lists(st.sampled_from(["", "", "want", "leave", "start", "end", "restart", "fail", "succeed"]),
                  max_size=200)


@given(EVENTS, st.booleans())
def test_a_used_cluster_is_never_stopped_and_a_wanted_one_always_wakes(events: list[str], delete: bool) -> None:
    """Checks of each step are in World.check; in the end, a working provider makes a wanted cluster active."""
    world = World(Settings(enabled=True, idle_seconds=5, wake_seconds=30, retry_seconds=20, delete=delete))
    for event in events:
        world.tick(event)
    world.tick("want")
    for _second in range(80):
        world.tick("succeed")
    assert (world.phase, world.runs) == ("Active", True)


@given(EVENTS)
def test_an_idle_cluster_is_stopped_in_the_end(events: list[str]) -> None:
    world = World(SETTINGS)
    for event in events:
        world.tick(event)
    world.busy = False
    world.tick("leave")
    for _second in range(100):
        world.tick("succeed")
    assert (world.phase, world.runs) == ("Suspended", False)


@given(EVENTS)
def test_a_disabled_feature_stops_nothing_and_wakes_what_is_being_stopped(events: list[str]) -> None:
    world = World(SETTINGS)
    for event in events:
        world.tick(event)
    world.settings, world.steps = Settings(wake_seconds=30, retry_seconds=20), []
    for event in events:
        world.tick(event)
    assert not {step.action for step in world.steps} & {"begin", "suspend", "delete"}
    for _second in range(80):
        world.tick("succeed")
    assert world.phase in ("Active", "Suspended")


@pytest.mark.parametrize(("state", "step"), [
    (State(idle=5.0, healthy=True), Step("begin", "Suspending")),
    (State(idle=4.9, healthy=True), None),
    (State(idle=9.0, healthy=False), None),  # its agent is silent: its state is unknown
    (State(idle=9.0, healthy=True, draining=True), None),
    (State(idle=9.0, healthy=True, due=False), None),
    (State(phase="Suspending", idle=9.0), Step("suspend", "Suspended")),
    (State(phase="Suspending", idle=9.0, deleted=True), Step("delete", "Suspended")),
    (State(phase="Suspending", idle=9.0, calling=True), None),
    (State(phase="Suspending", idle=9.0, wanted=True), Step("enter", "Waking")),
    (State(phase="Suspended", idle=9.0), None),
    (State(phase="Suspended"), Step("enter", "Waking")),  # a schedule consumes resources there
    (State(phase="Suspended", idle=9.0, back=True), Step("enter", "Active")),  # started by its operator
    (State(phase="Waking", wanted=True), Step("resume", "Waking")),
    (State(phase="Waking", wanted=True, deleted=True), Step("create", "Waking")),
    (State(phase="Waking", wanted=True, called=True), None),
    (State(phase="Waking", back=True), Step("resume", "Waking")),  # a restarted scheduler completes the call
    (State(phase="Waking", called=True, back=True), Step("enter", "Active")),
    (State(phase="Waking", called=True, elapsed=30.0), Step("enter", "Failed")),
    (State(phase="Failed", wanted=True), None),
    (State(phase="Failed", elapsed=20.0), Step("enter", "Suspended")),
    (State(phase="Failed", back=True), Step("enter", "Active"))])
def test_steps_by_phase(state: State, step: Step | None) -> None:
    assert next_step(state, SETTINGS) == step


@pytest.mark.parametrize(("action", "elapsed", "seconds"), [
    ("resume", 10.0, 20.0), ("create", 29.9, 1.0), ("suspend", 0.0, 900.0), ("delete", 99.0, 1800.0)])
def test_calls_that_wake_a_cluster_end_when_its_agent_must_be_back(action: Any, elapsed: float, seconds: float) -> None:
    assert Step(action, "Waking").deadline(elapsed, SETTINGS) == seconds


def test_settings_have_the_variables_and_defaults_of_the_facts() -> None:
    assert Settings.of({}) == Settings(enabled=False, idle_seconds=3600, delete=False, create=False, most_created=10)
    names = ("NOVA_IDLE_ENTER_STANDBY_ENABLE", "NOVA_DELETE_CLUSTER_IN_STANDBY", "NOVA_CREATE_CLUSTER_IF_NEEDED")
    changed = Settings.of({**dict.fromkeys(names, "true"), "NOVA_IDLE_ENTER_STANDBY_SECS": "60",
                           "NOVA_MAX_CREATED_CLUSTERS": "2"})
    assert changed == Settings(enabled=True, idle_seconds=60, delete=True, create=True, most_created=2)


@pytest.mark.parametrize(("name", "value"), [
    ("NOVA_IDLE_ENTER_STANDBY_ENABLE", "maybe"), ("NOVA_IDLE_ENTER_STANDBY_SECS", "-1"),
    ("NOVA_MAX_CREATED_CLUSTERS", "many"), ("NOVA_CREATE_CLUSTER_IF_NEEDED", "true")])
def test_invalid_settings_name_the_variable(name: str, value: str) -> None:
    with pytest.raises(Invalid, match=name):
        Settings.of({name: value})


def test_a_workload_waits_for_the_only_cluster_with_room_which_is_woken() -> None:
    """Chapter 4: candidates are Ready, or Standby when they can be woken; nothing is placed before they are ready."""
    decision = run(cluster("a", node(cpu=0)), asleep("b"))
    assert (decision.targets, decision.wakes, decision.placed) == ({}, {"b": {WEB: 1}}, False)


@pytest.mark.parametrize("failover", ["Never", "Fenced", "AvailabilityFirst"])
@pytest.mark.parametrize("spread", [None, Spread(NAME_LABEL)])
def test_a_workload_without_replicas_wakes_its_cluster_when_it_is_scaled_up(failover: Any, spread: Any) -> None:
    """The agent of a cluster in standby is silent, so its fence time may be over."""
    plan, released = policy(failover=failover, spread=spread), ["a"] if failover == "Fenced" else []
    for current in ({"a": {WEB: 0}}, {"a": {}}):
        assert run(asleep("a"), plan=plan, current=current, released=released).wakes == {"a": {WEB: 1}}
    decision = run(asleep("a"), B, plan=plan, current={"a": {WEB: 0}}, released=["a"])
    assert spread or decision.targets == {"b": {WEB: 1}}


def test_shares_without_replicas_in_stopped_clusters_grow_again() -> None:
    """Scaled to 0 and back by default policy, while one or all clusters are in standby, or one did not wake."""
    objects, plan = group(item("web", 10)), policy(spread=Spread(NAME_LABEL))
    present: Any = {"a": {WEB: 0}, "b": {WEB: 0}}
    both = run(asleep("a"), asleep("b"), objects=objects, plan=plan, current=present)
    assert both.wakes == {"a": {WEB: 5}, "b": {WEB: 5}}
    some = run(A, asleep("b"), objects=objects, plan=plan, current=present)
    assert (some.targets["a"], some.wakes) == ({WEB: 5}, {"b": {WEB: 5}})
    failed = run(A, asleep("b", problem="no nodes"), objects=objects, plan=plan, current=present)
    assert (failed.targets, failed.wakes) == ({"a": {WEB: 10}}, {})
    conf = group(Item(Ref("", "v1", "ConfigMap", "shop", "conf")))
    stays = run(A, asleep("b"), objects=conf, plan=plan, current={"a": {conf.items[0].ref.key: None},
                                                                  "b": {conf.items[0].ref.key: None}})
    assert sorted(stays.targets) == ["a", "b"]


def test_a_running_cluster_with_room_is_preferred_to_one_in_standby() -> None:
    decision = run(cluster("a", node(cpu=100)), asleep("b", node(cpu=9000)))
    assert (decision.targets, decision.wakes) == ({"a": {WEB: 1}}, {})


@pytest.mark.parametrize("brief", [False, True])
def test_the_first_value_of_an_ordered_policy_is_woken(brief: bool) -> None:
    """Fill and spill: the group stays where it is until the better cluster is awake."""
    decision = run(A, asleep("b"), plan=policy(ordered=["b", "a"]), current={"a": {WEB: 1}}, brief=brief)
    assert (decision.targets, decision.wakes) == ({"a": {WEB: 1}}, {"b": {WEB: 1}})


def test_a_cluster_that_failed_to_wake_is_excluded_with_its_reason() -> None:
    decision = run(cluster("a", node(cpu=0)), asleep("b", problem="no nodes"))
    assert decision.wakes == {}
    assert [(entry.cluster, entry.check) for entry in decision.rejections] == [("a", "cpu"), ("b", "standby")]
    assert "no nodes" in decision.rejections[1].message


def test_a_workload_in_a_cluster_that_is_being_stopped_wakes_it() -> None:
    """A former leader may have placed it at the last moment."""
    stopping = Cluster("a", {NAME_LABEL: "a"}, ready=False, reachable=True, standby=True, nodes=(node(),))
    booked = claims(stopping)
    booked.claim("a", "group", [(item("web"), 1)], included=True)
    decision = decide(group(), policy(), [stopping], booked, {"a": {WEB: 1}}, brief=True)
    assert (decision.targets, decision.wakes) == ({"a": {WEB: 1}}, {"a": {WEB: 1}})


@pytest.mark.parametrize("kind", ["ConfigMap", "Namespace", "Service"])
def test_objects_that_use_no_resources_wake_no_cluster(kind: str) -> None:
    objects = group(Item(Ref("", "v1", kind, "shop", "conf")))
    assert run(A, asleep("b"), objects=objects, plan=of_annotations("", "a,b::Duplicate")).wakes == {}
    assert run(asleep("b"), objects=objects).rejections[0].check == "standby"


def test_shares_of_a_spread_object_wait_for_their_cluster_and_none_shrinks_meanwhile() -> None:
    objects, plan = group(item("web", 10)), policy(spread=Spread(NAME_LABEL))
    fresh = run(A, asleep("b"), objects=objects, plan=plan)
    assert (fresh.targets, fresh.wakes) == ({"a": {WEB: 5}}, {"b": {WEB: 5}})
    running = run(A, asleep("b"), objects=objects, plan=plan, current={"a": {WEB: 10}})
    assert (running.targets, running.wakes) == ({"a": {WEB: 10}}, {"b": {WEB: 5}})


def test_a_job_spread_over_all_wakes_all() -> None:
    job = group(item("tick", None, kind="Job"))
    decision = run(A, asleep("b"), asleep("c"), objects=job, plan=of_annotations("", "a,b,c::Duplicate"))
    assert sorted(decision.wakes) == ["b", "c"]


def copy(plan: Any, *clusters: Cluster, objects: Any = None) -> tuple[str, str] | None:
    by_name = {entry.name: entry for entry in clusters}
    return clone(objects or group(item("web", 1, cpu=7000)), plan, by_name, {
        name: (node(),) for name, entry in by_name.items() if entry.ready})


def test_a_pinned_object_names_the_copy() -> None:
    """Mode annotation: X unknown, so a cluster with room for the object is copied under this name."""
    assert copy(of_annotations("x", ""), A, B) == ("a", "x")


@pytest.mark.parametrize("name", ["Foo", "a_b", "a/b", "a..b", "-a", "x" * 64])
def test_no_copy_has_a_name_that_clusters_cannot_have(name: str) -> None:
    """Users choose names by annotation: each try would create a namespace, and fail."""
    chosen = copy(of_annotations(name, ""), A, B)
    assert chosen is None


def test_a_full_cluster_that_the_policy_selects_is_copied_with_its_labels() -> None:
    full = cluster("b", node(cpu=0), tier="gold")
    chosen = copy(policy({"matchLabels": {"tier": "gold"}}), A, full)
    assert chosen is not None
    assert chosen[0] == "b"
    assert chosen[1].startswith("b-")
    assert chosen == copy(policy({"matchLabels": {"tier": "gold"}}), full), "the name depends on the group only"


@pytest.mark.parametrize(("plan", "clusters", "objects"), [
    (policy({"matchLabels": {NAME_LABEL: "a"}}), (A,), None),  # a copy has another name
    (policy(), (A, cluster("b", autoscaled=True)), None),
    (policy(), (A,), group(item("web", 1, cpu=9000))),  # does not fit into an empty copy either
    (policy(), (asleep("a"),), None),
    (policy(spread=Spread(NAME_LABEL)), (A,), None)])
def test_no_copy_is_made_without_use(plan: Any, clusters: Any, objects: Any) -> None:
    assert copy(plan, *clusters, objects=objects) is None


@pytest.mark.parametrize(("copies", "allowed"), [
    ([], True), ([("Active", 0.0)], True), ([("Active", 0.0), ("Active", 0.0)], False), ([("Waking", 99.0)], False),
    ([("Suspended", 1.0)], False), ([("Suspended", 99.0)], True), ([("Failed", 1.0)], True)])
def test_copies_are_made_in_turn_up_to_the_maximum(copies: list[tuple[Phase, float]], allowed: bool) -> None:
    assert may_copy(copies, Settings(create=True, most_created=2)) is allowed
    assert not may_copy(copies, Settings(most_created=2))


@pytest.fixture
def program(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "helper"
    path.write_text(f"""#!/bin/sh
cat > {tmp_path}/input
echo "$1 $2" >> {tmp_path}/calls
case "$1" in
describe) echo '{{"pool": {{"desiredCapacity": 3}}}}' ;;
resume) echo "first line" >&2; echo "quota exceeded" >&2; exit 3 ;;
delete) echo $$ > {tmp_path}/pid; sleep 60 & wait ;;
create) setsid sleep 20 & sleep $(cat {tmp_path}/delay) ;;
esac
""")
    path.chmod(0o700)
    return path


def test_the_operators_program_gets_verb_name_and_cluster(program: pathlib.Path) -> None:
    provider = ExecProvider({HELPER: str(program)})
    target = Target(name="c1", provider="aws", region="r", node_groups={"pool": {"desiredCapacity": 3}})
    assert asyncio.run(provider.describe(target)) == {"pool": {"desiredCapacity": 3}}
    asyncio.run(provider.suspend(target))
    assert (program.parent / "calls").read_text() == "describe c1\nsuspend c1\n"
    assert b'"desiredCapacity":3' in (program.parent / "input").read_bytes()
    with pytest.raises(ProviderError, match="helper resume ended with code 3: quota exceeded"):
        asyncio.run(provider.resume(target))


def test_the_operators_program_ends_with_its_children_at_the_deadline(program: pathlib.Path) -> None:
    async def call() -> None:
        async with asyncio.timeout(1.0):
            await ExecProvider({HELPER: str(program)}).delete(Target(name="c1"))
    with pytest.raises(TimeoutError):
        asyncio.run(call())
    pid = int((program.parent / "pid").read_text())
    deadline = time.monotonic() + 10
    while any(fields[2] == str(pid) for fields in _processes()):  # its process group
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("delay", [0, 60])
def test_processes_that_the_operators_program_leaves_behind_are_not_waited_for(
        program: pathlib.Path, delay: int) -> None:
    """A program may start an agent in the background, which keeps the program's output open."""
    (program.parent / "delay").write_text(str(delay))

    async def call() -> None:
        async with asyncio.timeout(5.0):
            await ExecProvider({HELPER: str(program)}).create(Target(name="c1"))
    started = time.monotonic()
    if delay:
        with pytest.raises(TimeoutError):
            asyncio.run(call())
    else:
        asyncio.run(call())
    assert time.monotonic() - started < 10


def _processes() -> list[list[str]]:
    """Return state, parent, process group and so on of all processes but zombies."""
    result = []
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            result.append(fields)
    return result


def test_providers_are_chosen_by_name_and_the_operators_program_serves_the_others(tmp_path: pathlib.Path) -> None:
    assert Providers({}).of("local") is None
    assert Providers({}).of("aws") is None
    configured = Providers({HELPER: "/bin/true", "NOVA_LOCAL_DIRECTORY": str(tmp_path)})
    assert isinstance(configured.of("aws"), ExecProvider)
    assert type(configured.of("local")).__name__ == "LocalProvider"
    assert isinstance(configured.of(""), ExecProvider)
    assert isinstance(configured.of("exec"), ExecProvider)


def test_the_provider_of_local_clusters_creates_nothing_but_members(tmp_path: pathlib.Path) -> None:
    provider = Providers({"NOVA_LOCAL_DIRECTORY": str(tmp_path)}).of("local")
    assert provider is not None
    with pytest.raises(ProviderError, match="workload-"):
        asyncio.run(provider.create(Target(name="pki", template="kind-workload-1")))
    assert not list(tmp_path.iterdir())


def test_a_program_that_cannot_run_is_an_error_of_the_provider() -> None:
    with pytest.raises(ProviderError, match="cannot be executed"):
        asyncio.run(ExecProvider({HELPER: "/nonexistent/helper"}).suspend(Target(name="c1")))
    with pytest.raises(Invalid, match=HELPER):
        ExecProvider({HELPER: "relative"})


@given(st.data())
def test_decisions_wake_only_what_can_wake_and_take_nothing_away_meanwhile(data: st.DataObject) -> None:
    worlds = []
    for name in "abc":
        state = data.draw(st.sampled_from(["awake", "asleep", "failed"]))
        size = node(cpu=data.draw(st.sampled_from([0, 200, 8000])))
        worlds.append(cluster(name, size, autoscaled=data.draw(st.booleans())) if state == "awake" else asleep(
            name, size, problem="failed" if state == "failed" else ""))
    plan = policy(spread=data.draw(st.sampled_from([None, Spread(NAME_LABEL), Spread(NAME_LABEL, duplicate=True)])),
                  ordered=data.draw(st.sampled_from([None, ["b", "a"]])))
    replicas = data.draw(st.integers(0, 6))
    objects = group(item("web", replicas), Item(Ref("", "v1", "ConfigMap", "shop", "conf")))
    current = {name: {WEB: data.draw(st.integers(1, 6))} for name in data.draw(st.sets(st.sampled_from("abc")))
               if worlds["abc".index(name)].reachable}
    by_name = {entry.name: entry for entry in worlds}
    decision, brief = (run(*worlds, objects=objects, plan=plan, current=current, brief=value)
                       for value in (False, True))
    assert (decision.targets, decision.wakes) == (brief.targets, brief.wakes)
    assert all(by_name[name].standby and not by_name[name].problem for name in decision.wakes)
    assert not any(by_name[name].standby for name in decision.targets)
    assert not (decision.wakes and (decision.placed or not replicas))
    for name, shares in current.items() if decision.wakes and plan.spread else ():
        assert (decision.targets[name][WEB] or 0) >= shares[WEB]
    if decision.wakes and not plan.spread:
        assert not current or decision.targets.keys() >= current.keys()
