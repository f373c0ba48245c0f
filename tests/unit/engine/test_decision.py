"""Decisions of the saga engine without a database: every sequence of events terminates and compensates its effects."""

import copy

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nova.conductor.saga.decision import Done, Ended, Failed, HostLost, decide, enter
from nova.conductor.saga.run import Run
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import Object, utcnow
from nova.objects.servers import states
from nova.objects.servers.action import Action, Failure
from nova.objects.servers.instance import Instance
from nova.operations import REGISTRY
from nova.operations.framework.base import CONDUCTOR, Operation, Step

NAMES = sorted(REGISTRY)
PLACES = ("host", "source", "other")
KINDS = ("NovaException", "NoValidHost", "ClaimLost", "HostDown", "ServiceUnavailable")


class Hooks:
    """A Control that records the changes made by transitions."""

    def __init__(self):
        self.evicted, self.changes = [], {}

    def set(self, **changes):
        self.changes.update(changes)

    def fault(self, failure):
        self.changes["fault"] = failure

    def evict(self, host, keep_disks):
        self.evicted.append(host)


def operation_like(original):
    """Return a copy of an operation whose data have a host per place and a flag per condition."""
    fields = {**{name: (str, name[0]) for name in PLACES}, "tries": (int, 2), "events": (list, [])}
    fields |= {item.when: (bool, True) for item in original.steps if item.when and item.when not in fields}

    def may_retry(self, failure):
        self.data.tries -= 1
        return self.data.tries > 0

    def compensation_failed(self, of):
        self.data.events.append(of.name)

    return type(f"Like{original.__name__}", (Operation,), {
        "name": f"like_{original.name}", "action": original.action, "rules": original.rules, "steps": original.steps,
        "data_type": msgspec.defstruct("Data", [(name, *rest) for name, rest in fields.items()], bases=(Object,)),
        "retry_from": original.retry_from, "point_of_no_return": original.point_of_no_return,
        "may_retry": may_retry, "compensation_failed": compensation_failed})


def new_run(operation, data):
    instance = Instance(uuid="u", project_id="p", user_id="u", display_name="n", hostname="n", host="h",
                        flavor=Flavor(flavorid="1", name="m1", memory_mb=128, vcpus=1), created_at=utcnow(),
                        vm_state=states.ACTIVE)
    first = operation(instance, data).first()
    return Run(Action(uuid="a", instance_uuid="u", action=operation.action, operation=operation.name,
                      payload={"data": data}, step=first.name if first else None, attempt=1, request_id="r",
                      user_id="u", project_id="p", start_time=utcnow(), updated_at=utcnow()), instance)


def snapshot(run):
    return copy.deepcopy((msgspec.to_builtins(run.action), msgspec.to_builtins(run.journal),
                          msgspec.to_builtins(run.operation.data)))


class World:
    """An execution of an operation with events drawn by hypothesis, which records steps with effects."""

    def __init__(self, run, draw):
        self.run, self.draw, self.hooks = run, draw, Hooks()
        # Steps that may have had an effect, and steps whose compensation was done, abandoned or left to an eviction.
        self.effects: list[Step] = []
        self.compensated: list[Step] = []
        # Position of the latest step that was dispatched forwards.
        self.position = 0
        self.retried = 0

    def event(self):
        """Execute the current order completely or partially and return the reported event."""
        run, step = self.run, self.run.step
        if step is None:
            return Ended()
        undoing = run.action.undoing
        batch = [step] if step.place == CONDUCTOR else run.operation.batch(step, undoing)
        what = self.draw(st.sampled_from(("done", "done", "done", "failed", "lost")))
        if what == "lost" and step.place != CONDUCTOR:
            self.note(batch, undoing)
            return HostLost(step)
        if what == "done" or what == "lost":
            self.note(batch, undoing)
            return Done(batch[-1])
        failed = self.draw(st.integers(0, len(batch) - 1))
        self.note(batch[:failed + 1], undoing)
        kind = self.draw(st.sampled_from(KINDS if step.place == CONDUCTOR else KINDS[:-1]))
        return Failed(batch[failed], Failure(message=kind, kind=kind), batch[failed],
                      unavailable=kind in ("HostDown", "ServiceUnavailable"))

    def note(self, steps, undoing):
        (self.compensated if undoing else self.effects).extend(steps)

    def play(self):
        """Run until the operation ends and return its last transition."""
        limit = 6 * len(self.run.operation.steps) + 6
        for _count in range(limit):
            event, before = self.event(), snapshot(self.run)
            undoing, step = self.run.action.undoing, self.run.step
            if step is not None and not undoing:
                self.position = self.run.operation.steps.index(step)
            transition = decide(self.run, event)
            assert snapshot(self.run) == before, "a decision must not change the run"
            assert decide(self.run, event) == transition, "a decision must be deterministic"
            if transition.waits:
                assert isinstance(event, HostLost)
                assert step.when_down == "wait"
                continue
            host_down = (step.when_down != "skip" if isinstance(event, HostLost) else
                         isinstance(event, Failed) and step.place != CONDUCTOR and event.failure.kind == "HostDown")
            if host_down and not undoing:  # the host cannot compensate
                last = event.furthest if isinstance(event, Failed) else self.run.furthest(step)
                self.compensated += self.run.operation.batch(last, True)
            elif isinstance(event, Failed) and undoing:
                assert transition.deferred or not event.step.external, "a failed external undo must be deferred"
            elif isinstance(event, Failed) and transition.step is not event.step:
                self.effects.remove(event.step)  # a failed conductor step wrote nothing or is deferred
            if transition.retries:
                self.retried += 1
                self.effects, self.compensated = [], []
            following = enter(self.run, transition, self.hooks)
            self.run.action.step = following.name if following else None
            if transition.outcome:
                return transition
        pytest.fail(f"no end after {limit} events")


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_sequence_of_events_ends_and_compensates_its_effects(name, data):
    operation = operation_like(REGISTRY[name])
    REGISTRY[operation.name] = operation
    try:
        conditions = {item.when: data.draw(st.booleans()) for item in operation.steps if item.when}
        run = new_run(operation, conditions)
        world = World(run, data.draw)
        end = world.play()
    finally:
        del REGISTRY[operation.name]
    if end.outcome == "success":
        assert not world.retried or run.operation.data.tries > 0
        assert "fault" not in world.hooks.changes
        return
    assert world.hooks.changes["fault"] is end.failure is run.journal.failure
    names = [item.name for item in operation.steps]
    point = names.index(operation.point_of_no_return) if operation.point_of_no_return else -1
    reached = world.position > point >= 0
    for item in world.effects:
        if item.undo and not (reached and names.index(item.name) <= point):
            assert item in world.compensated, f"{item.name} was not compensated"
    order = [names.index(item.name) for item in world.compensated]
    assert order == sorted(order, reverse=True), "compensations must run in reverse order"
