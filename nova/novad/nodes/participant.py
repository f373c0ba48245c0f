"""A node whose components are assigned by a control node.

Its part in a deployment is executed like any other deployment and then waits (``pending``) for the decision of the
control node. If novad is killed before that state, the part is rolled back at the next start.
"""

from __future__ import annotations

import logging
from typing import Literal

import msgspec

from nova.common.errors import Invalid, Refused
from nova.novad.deployment import history
from nova.novad.deployment.containers import Progress
from nova.novad.deployment.deploy import Deployer, Terms
from nova.novad.deployment.journal import DONE, PENDING, RUNNING, STUCK, Change, Deployment, Origin
from nova.novad.documents import Strict
from nova.novad.platform import Name, Platform, check

LOG = logging.getLogger(__name__)

_PLATFORM, _COORDINATOR, _SETTLED = "given-platform", "coordinator", "settled"  # Facts of the journal.


class Assignment(Strict, frozen=True, kw_only=True):
    """The part of a deployment that a control node requests from another node.

    ``coordinator``, ``control``, ``number``: id and name of the control node, and its number of the deployment.
    ``platform``: the components of this node, with the addresses of others. ``versions``: components to deploy (empty:
    all); ``names``: components to roll back, or secrets to renew; ``to``: the deployment to roll back to. ``volumes``,
    ``secrets``: True if a removal includes them. ``values``: the values of the secrets that the components use.
    """

    coordinator: str
    control: str
    number: int = 0
    kind: Literal["deploy", "rollback", "remove", "rotate"]
    platform: Platform
    versions: dict[Name, str] = {}
    names: tuple[Name, ...] = ()
    to: int | None = None
    volumes: bool = False
    secrets: bool = False
    values: dict[Name, str] = {}

    def __repr__(self) -> str:
        return f"Assignment({self.kind} {self.number} of {self.control})"  # without secrets

    @classmethod
    def decode(cls, data: bytes) -> Assignment:
        """Decode and check an assignment. Raises Invalid."""
        try:
            assignment = msgspec.json.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise Invalid("Cannot decode the assignment (do both nodes run the same version of novad?): "
                          f"{error}") from None
        check(assignment.platform)
        return assignment


class Participant:
    def __init__(self, deployer: Deployer, node: str, steered: bool) -> None:
        self.deployer = deployer
        self.node = node
        self.steered = steered
        self._journal = deployer.journal
        if steered and (platform := self._journal.fact(_PLATFORM)):
            deployer.platform = msgspec.json.decode(platform, type=Platform)

    def plan(self, assignment: Assignment) -> list[Change]:
        """Return the changes that an assignment would make here. Raises Busy, Refused, NotKnown, Invalid."""
        with self.deployer.changing("plan"):
            self._accept(assignment)
            return self._changes(assignment)

    def prepare(self, assignment: Assignment, progress: Progress) -> None:
        with self.deployer.changing("prepare"):
            self._accept(assignment)
            self.deployer.secrets.take(assignment.values)
            self.deployer.prepare(assignment.kind, self._changes(assignment), progress)

    def apply(self, assignment: Assignment, progress: Progress) -> list[str]:
        """Apply an assignment and wait for the decision; return the changed components. Raises like Deployer.run()."""
        origin = Origin(coordinator=assignment.coordinator, node=assignment.control, number=assignment.number,
                        volumes=assignment.volumes, secrets=assignment.secrets)
        with self.deployer.changing(assignment.kind):
            self._accept(assignment)
            if assignment.number <= self._settled(assignment.coordinator):
                raise Refused(f"Deployment {assignment.number} of {assignment.control} has ended already. If the "
                              "journal there is an older copy, repeat the command: each attempt has a new number.")
            self._journal.set_fact(_PLATFORM, msgspec.json.encode(assignment.platform).decode())
            self._journal.set_fact(_COORDINATOR, f"{assignment.coordinator} {assignment.control}")
            made = self.deployer.run(assignment.kind, self._changes(assignment), progress, Terms(
                renew=self.deployer.secrets.take(assignment.values), origin=origin, drop_data=assignment.volumes))
            return [change.name for change in made.changes]

    def settle(self, coordinator: str, number: int, done: bool, progress: Progress) -> Deployment | None:
        """Commit or undo the pending changes, and return their deployment; the call may be repeated. A decision after
        the end of the deployment has no effect: the next one begins with the actual components. Raises Busy, Failed."""
        with self.deployer.alone("settle"):
            deployment = self._journal.given(coordinator, number)
            if deployment is not None:
                self._settle(deployment, done, progress)
            elif done:
                LOG.warning("Ignoring the outcome of the control node's deployment %d: not in the journal", number)
            if number > self._settled(coordinator):
                self._journal.set_fact(_SETTLED, f"{coordinator} {number}")
            return deployment

    def _settle(self, deployment: Deployment, done: bool, progress: Progress) -> None:
        if deployment.state == PENDING or (not done and deployment.state in (RUNNING, STUCK)):
            origin = self._journal.origins([deployment.id])[deployment.id]
            self.deployer.decide(deployment.id, done, progress, self.deployer.containers.removal_tasks(
                origin.volumes, origin.secrets))
        elif done != (deployment.state == DONE) and deployment.changes:
            LOG.warning("Deployment %d stays %s here: another outcome from the control node has no effect any more",
                        deployment.id, deployment.state)

    def give_up_waiting(self, progress: Progress) -> None:
        """Commit the pending changes before a removal of all components, because the control node does not return."""
        with self.deployer.alone("settle"):
            if self.steered and (pending := self._journal.pending()) is not None:
                self._settle(pending, True, progress)

    def _accept(self, assignment: Assignment) -> None:
        if not self.steered:
            raise Refused(f'Node {self.node} has a platform file of its own; with platform = "" in its novad.toml '
                          "a control node assigns its components.")
        current = self._journal.components()
        coordinator, _space, node = self._journal.fact(_COORDINATOR).partition(" ")
        # A control node whose journal was lost has another id.
        if current and coordinator and assignment.coordinator != coordinator and assignment.control != node:
            raise Refused(f"Node {self.node} belongs to another control node ({node}). Run nova remove "
                          "on it first.")
        if current and assignment.platform.name != self.deployer.platform.name:
            raise Invalid(f"Components of platform {self.deployer.platform.name} are deployed on node {self.node}; "
                          f"run nova remove before renaming the platform to {assignment.platform.name}.")
        self.deployer.platform = assignment.platform

    def _changes(self, assignment: Assignment) -> list[Change]:
        if assignment.kind == history.DEPLOY:
            return self.deployer.plan(assignment.versions)
        if assignment.kind == history.REMOVE:
            return self.deployer.removals()
        if assignment.kind == history.ROTATE:
            return self.deployer.rotations(assignment.names)
        to = None if assignment.to is None else self._journal.given_until(assignment.coordinator, assignment.to)
        return history.changes_back(self._journal, assignment.names, to) if to != 0 else []

    def _settled(self, coordinator: str) -> int:
        """Return the number of the control node's newest decided deployment, up to which requests are refused, or 0."""
        settled_by, _space, number = self._journal.fact(_SETTLED).partition(" ")
        return int(number) if settled_by == coordinator else 0
