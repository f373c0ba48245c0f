"""A node that is told what to run by the novad of a control node.

Its part in a deployment is carried out as any other deployment, and then waits (``pending``) until the control node
says whether it stays. Before that novad puts it back by itself when it is killed in the middle: nothing was promised.
"""

from __future__ import annotations

import contextlib
import logging

import msgspec

from nova.novad import history
from nova.novad.containers import Progress
from nova.novad.deploy import Deployer, Terms
from nova.novad.errors import Failed, Invalid, Nothing, NotKnown, Refused
from nova.novad.journal import DONE, PENDING, RUNNING, STUCK, Change, Deployment, Origin
from nova.novad.platform import Platform
from nova.novad.shares import Share

LOG = logging.getLogger(__name__)

_PLATFORM, _COORDINATOR, _SETTLED = "given-platform", "coordinator", "settled"  # facts


class Participant:
    def __init__(self, deployer: Deployer, node: str, steered: bool) -> None:
        self.deployer = deployer
        self.node = node
        self.steered = steered
        self._journal = deployer.journal
        if steered and (known := self._journal.fact(_PLATFORM)):
            deployer.platform = msgspec.json.decode(known, type=Platform)

    def plan(self, share: Share) -> list[Change]:
        """Return what a share would do here. Raises Busy, Refused, NotKnown, Invalid."""
        with self.deployer.changing("plan"):
            self._accept(share)
            return self._changes(share)

    def prepare(self, share: Share, progress: Progress) -> None:
        """Fetch and check what it needs; nothing is changed."""
        with self.deployer.changing("prepare"):
            self._accept(share)
            self.deployer.secrets.take(share.values)
            self.deployer.prepare(share.kind, self._changes(share), progress)

    def apply(self, share: Share, progress: Progress) -> list[str]:
        """Do it, and wait for the decision; returns what was changed. Raises as the deployer does, and then all is as
        before."""
        origin = Origin(coordinator=share.coordinator, node=share.control, number=share.number, volumes=share.volumes,
                        secrets=share.secrets)
        with self.deployer.changing(share.kind):
            self._accept(share)
            if share.number <= self._settled(share.coordinator):
                raise Refused(f"Deployment {share.number} of {share.control} has been given up already.")
            self._journal.set_fact(_PLATFORM, msgspec.json.encode(share.platform).decode())
            self._journal.set_fact(_COORDINATOR, f"{share.coordinator} {share.control}")
            renew = self.deployer.secrets.take(share.values)
            made = self.deployer.run_alone(share.kind, self._changes(share), progress, Terms(
                renew=renew, values=share.values, origin=origin))
            return [change.name for change in made.changes]

    def settle(self, coordinator: str, number: int, done: bool, progress: Progress) -> None:
        """Commit or undo the pending changes; the call may be repeated. Raises Busy, Failed, NotKnown."""
        with self.deployer.alone("settle"):
            found = self._journal.given(coordinator, number)
            if found is not None:
                self._settle(found, done, progress)
            elif done:
                raise NotKnown(f"Node {self.node} knows no deployment {number} of this control node.")
            if number > self._settled(coordinator):
                self._journal.set_fact(_SETTLED, f"{coordinator} {number}")

    def _settle(self, found: Deployment, done: bool, progress: Progress) -> None:
        if found.state == PENDING or (not done and found.state in (RUNNING, STUCK)):
            origin = self._journal.origin(found.id)
            debts = self.deployer.debts(origin.volumes, origin.secrets) if origin is not None else []
            self.deployer.decide(found.id, done, progress, debts)
        elif done != (found.state == DONE) and found.changes:
            raise Failed(f"Deployment {found.id} is {found.state} on node {self.node} already.")

    def give_up_waiting(self, progress: Progress) -> None:
        """Commit the pending changes, before all is removed because the control node does not come back."""
        with self.deployer.alone("settle"):
            if self.steered and (found := self._journal.pending()) is not None:
                self._settle(found, True, progress)

    def _accept(self, share: Share) -> None:
        if not self.steered:
            raise Refused(f'Node {self.node} has a platform file of its own; with platform = "" in its novad.toml it '
                          "is told by others what to run.")
        current = self._journal.components()
        known, _space, node = self._journal.fact(_COORDINATOR).partition(" ")
        if current and known and known != share.coordinator:
            raise Refused(f"Node {self.node} is told what to run by another control node ({node}). nova remove on it "
                          "makes it free.")
        if current and share.platform.name != self.deployer.platform.name:
            raise Invalid(f"Components of platform {self.deployer.platform.name} are deployed on node {self.node}; "
                          f"nova remove them before the platform is called {share.platform.name}.")
        self.deployer.platform = share.platform

    def _changes(self, share: Share) -> list[Change]:
        current = self._journal.components()
        if share.kind == history.DEPLOY:
            return self.deployer.plan(share.versions)
        if share.kind == history.REMOVE:
            return [Change(name=name, before=current[name]) for name in self.deployer.order(current)]
        if share.kind == history.ROTATE:
            return [Change(name=name, before=current[name], after=current[name])
                    for name in self.deployer.order(current) if current[name].component.secrets() & set(share.names)]
        with contextlib.suppress(Nothing):
            to = None if share.to is None else self._journal.given_until(share.coordinator, share.to)
            if current and to != 0:
                return self.deployer.plan_rollback(share.names, to)
        return []

    def _settled(self, coordinator: str) -> int:
        """The last deployment of the control node that was decided: nothing that is late is begun."""
        known, _space, number = self._journal.fact(_SETTLED).partition(" ")
        return int(number) if known == coordinator else 0
