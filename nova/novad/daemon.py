"""The daemon: requests of clients, and the periodic check that deployed components run."""

import collections
import contextlib
import logging
import pathlib
import secrets as random
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from nova.common import files
from nova.common.errors import Invalid, NotKnown, Refused, ReportedError
from nova.common.structs import compile_imported
from nova.novad.api import novad_pb2 as pb
from nova.novad.deployment import containers, deploy, history
from nova.novad.deployment.containers import Progress
from nova.novad.deployment.data import Data
from nova.novad.deployment.deploy import Deployer, Terms
from nova.novad.deployment.journal import DONE, Backup, Change, Deployed, Deployment, Journal
from nova.novad.errors import Busy, Cancelled
from nova.novad.nodes.coordinator import Coordinator, NodeAssignment, Peer
from nova.novad.nodes.participant import Assignment, Participant
from nova.novad.options import Options
from nova.novad.platform import Platform
from nova.novad.runtime.podman import Podman
from nova.novad.secrets import Secrets
from nova.novad.signing import profiling_token

LOG = logging.getLogger(__name__)

RUNNING, UNHEALTHY, STOPPED, MISSING = "running", "unhealthy", "stopped", "missing"
# Pause in seconds before a restart of a component that keeps exiting: doubled after each restart, up to the maximum.
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 300.0
_CALM = 60.0  # Seconds after which a restarted component counts as stable.


class Daemon:
    """The daemon of a node. ``platform``: the whole platform file, or None if a control node assigns the components."""

    def __init__(self, options: Options, platform: Platform | None, runtime: Podman) -> None:
        compile_imported()  # Before threads start: the calls of clients decode in threads.
        self.options = options
        self.started = time.time()
        self.runtime = runtime
        root = pathlib.Path(options.data_dir)
        files.private_directory(root, owned=True)
        for name in ("secret_file", "key_file", "tls_key"):
            path = pathlib.Path(getattr(options, name))
            if path.is_file() and (mode := path.stat().st_mode & 0o7777) & 0o077:
                LOG.warning("%s: other accounts can read %s, mode %04o. Restrict it: chmod 600 %s", name, path, mode,
                            path)
        passphrase = pathlib.Path(options.key_file).read_bytes().strip() if options.key_file else None
        if passphrase == b"":
            raise Invalid(f"key_file: {options.key_file} is empty")
        self.data = Data(root)
        self.journal = Journal(root / "journal.sqlite")
        self.secrets = Secrets(root / "secrets", passphrase)
        self.whole = platform or Platform(name="none", components={})
        here = options.place
        self.deployer = Deployer(self.whole.part(here) if options.coordinates else self.whole.at(here, [here]),
                                 self.journal, runtime, self.data, self.secrets)
        self.participant = Participant(self.deployer, options.name, platform is None)
        if platform is not None:  # Containers are identified by the name of their platform.
            stored = self.journal.fact("platform")
            if stored and stored != platform.name and self.journal.components():
                raise Invalid(f"{options.platform}: name: components of platform {stored} are deployed here; run nova "
                              f"remove before renaming the platform to {platform.name}.")
            self.journal.set_fact("platform", platform.name)
        self.ident = self.journal.fact("id") or random.token_hex(16)
        self.journal.set_fact("id", self.ident)
        self.coordinator = Coordinator(options, self.ident, self.shared_secret(), self.journal, self.secrets,
                                       self.deployer.ending) if options.coordinates else None
        self.deployer.others = self.coordinator
        self._failures: dict[str, int] = {}
        self._checked: dict[str, float] = {}
        self._unhealthy: dict[str, str] = {}
        self._starts: dict[str, tuple[int, float]] = {}  # Number of restarts and the time of the last one.
        self._thread = threading.Thread(target=self._keep, name="keep", daemon=True)

    def start(self) -> None:
        """Undo deployments that were interrupted, then keep the deployed components running."""
        self._thread.start()
        if self.coordinator is not None:
            self.coordinator.start()

    def stop(self) -> None:
        """Stop the daemon. Containers keep running; a deployment in progress is rolled back at the next start."""
        self.deployer.ending.set()
        if self._thread.is_alive():
            self._thread.join(10)
        if self.coordinator is not None:
            self.coordinator.stop()
        if self.deployer.idle(20.0):  # Seconds within which a deployment must stop.
            self.journal.close()

    def shared_secret(self) -> str:
        """Return the shared secret that clients need. Created at the first start unless secret_file names a file."""
        file = pathlib.Path(self.options.secret_file or self.data.root / "shared-secret")
        if not file.exists() and not self.options.secret_file:
            files.replace(file, random.token_hex(32), sync=True)
        secret = file.read_text().strip()
        if not secret:
            raise Invalid(f"secret_file: {file} is empty")
        if not secret.isascii() or not secret.isprintable():
            raise Invalid(f"secret_file: {file} has characters that are not allowed in an HTTP header")
        return secret

    def profiling_token(self) -> str:
        """Return the token of clients that request profiles, and write it to a file for them."""
        token = profiling_token(self.shared_secret())
        files.replace(self.data.root / "profiling-token", token, sync=True)
        return token

    def deploy(self, wanted: dict[str, str], progress: Progress) -> None:
        with self._steering(history.DEPLOY) as peers:
            changes = self._wanted(wanted, peers)
            assignments = self._assignments(peers, history.DEPLOY, wanted)
            made = self.deployer.run(history.DEPLOY, changes, progress, Terms(assignments=assignments))
        self._done(made, progress)

    def plan(self, wanted: dict[str, str]) -> tuple[list[Change], list[pb.PlannedChange]]:
        """Return the changes that deploy would make: those of this node, and those of other nodes."""
        if self.coordinator is None and not self.participant.steered:
            return self._wanted(wanted, []), []
        with self._steering("plan") as peers:
            assignments = self._assignments(peers, history.DEPLOY, wanted)
            elsewhere = self.coordinator.plan(assignments) if self.coordinator is not None else []
            return self._wanted(wanted, peers), elsewhere

    def rollback(self, names: Sequence[str], to: int | None, progress: Progress) -> None:
        with self._steering(history.ROLLBACK) as peers:
            current = self.journal.components()
            elsewhere = {component.name for peer in peers for component in peer.components}
            here = [name for name in names if name in current or name not in elsewhere]
            changes = history.changes_back(self.journal, here, to) if here or not names else []
            if not changes and not elsewhere & set(names or elsewhere):
                raise Refused("Nothing to roll back to: no other deployment of "
                              f"{', '.join(here or current) or 'any component'}{f' up to {to}' if to else ''} exists.")
            assignments = self._assignments(peers, history.ROLLBACK, {}, names, to=to)
            made = self.deployer.run(history.ROLLBACK, changes, progress, Terms(assignments=assignments))
        self._done(made, progress)

    def remove(self, volumes: bool, secrets: bool, progress: Progress) -> None:
        """Remove all components; with ``volumes`` also their data, with ``secrets`` also the secrets."""
        self.participant.give_up_waiting(progress)
        with self._steering(history.REMOVE, steered=True) as peers:
            changes = self.deployer.removals()
            assignments = self._assignments(peers, history.REMOVE, {}, volumes=volumes, secrets=secrets)
            self.deployer.run(history.REMOVE, changes, progress, Terms(
                assignments=assignments, drop_data=volumes, drop_secrets=secrets))
            self._forget(change.name for change in changes)

    @contextlib.contextmanager
    def _steering(self, kind: str, steered: bool = False) -> Iterator[list[Peer]]:
        """Lock out other changes and connect to the other nodes. Raises Busy, Refused."""
        if self.participant.steered and not steered:
            raise Refused(f"Run the command on the control node, which assigns the components of {self.options.name}.")
        with self.deployer.changing(kind):
            peers: list[Peer] = []
            if self.coordinator is not None:
                peers = self.coordinator.survey()
                here = self.options.place
                self.deployer.platform = self.whole.at(here, [here, *(peer.place for peer in peers)])
            yield peers

    def _wanted(self, wanted: dict[str, str], peers: Sequence[Peer]) -> list[Change]:
        """Return the changes of this node that deploy ``wanted`` ({component: version}). Raises NotKnown, Refused."""
        places = [self.options.place, *(peer.place for peer in peers)]
        for name in wanted:
            if not any(place.runs(self.whole.component(name)) for place in places):
                raise Refused(f"No node has one of the roles of {name}: {', '.join(self.whole.component(name).roles)}.")
        here = {name: version for name, version in wanted.items() if name in self.deployer.platform.components}
        return [] if wanted and not here else self.deployer.plan(here)

    def _assignments(self, peers: Sequence[Peer], kind: Any, versions: dict[str, str], names: Sequence[str] = (),
                     **more: Any) -> list[NodeAssignment]:
        """Return the assignments of the other nodes, without nodes that have none of the named components."""
        places = [self.options.place, *(peer.place for peer in peers)]
        assignments: list[NodeAssignment] = []
        for peer in peers:
            platform = self.whole.at(peer.place, places)
            there = ({component.name for component in peer.components} if kind == history.ROLLBACK
                     else set(platform.components))
            mine = {name: version for name, version in versions.items() if name in there}
            chosen = tuple(name for name in names if name in there or kind == history.ROTATE)
            if (versions and not mine) or (names and not chosen):
                continue
            self.secrets.make({name: self.whole.secrets[name] for component in platform.components.values()
                               for name in component.secrets()})
            assignments.append((peer, Assignment(coordinator=self.ident, control=self.options.name, kind=kind,
                                                 platform=platform, versions=mine, names=chosen, **more)))
        return assignments

    def settle(self, coordinator: str, number: int, done: bool, progress: Progress) -> None:
        """Apply the decision of the control node on a deployment. Raises Busy, Failed."""
        if (decided := self.participant.settle(coordinator, number, done, progress)) is not None:
            self._done(decided, lambda _name, _what: None)

    def restart(self, names: Sequence[str], progress: Progress) -> None:
        """Restart components by dependency, each after the previous one is healthy. Raises NotKnown, Busy, Failed."""
        with self.deployer.changing(deploy.RESTART):
            current = self.journal.components()
            chosen = self._existing(names, current)
            for name in reversed(chosen):
                progress(name, "stopping")
                self.deployer.containers.stop(current[name])
            for name in chosen:
                progress(name, "starting")
                self.deployer.containers.begin(current[name])
                self.deployer.containers.wait(current[name])
                self._forget([name])
                progress(name, "is healthy")

    def rotate(self, names: Sequence[str], progress: Progress) -> None:
        """Replace secrets and recreate the components that use them. A failure restores the old values."""
        existing = self.secrets.names()
        for name in names:
            if name not in existing or name not in self.deployer.platform.secrets:
                raise NotKnown(f"Secret {name} does not exist.")
        with self._steering(history.ROTATE) as peers:
            made = self.deployer.run(history.ROTATE, self.deployer.rotations(names), progress, Terms(
                renew=dict.fromkeys(names, ""), assignments=self._assignments(peers, history.ROTATE, {}, names)))
        self._done(made, progress)

    def back_up(self, name: str, progress: Progress) -> None:
        with self.deployer.changing(history.BACK_UP):
            current = self.journal.components()
            changes = [Change(name=existing, before=current[existing], after=current[existing]) for existing in
                       self._existing([name] if name else [], current) if current[existing].component.volumes]
            made = self.deployer.run(history.BACK_UP, changes, progress, Terms())
        self._done(made, progress)

    def restore(self, ident: int, progress: Progress) -> None:
        """Restore the data and image of a component from a backup. The current data are backed up before."""
        with self.deployer.changing(history.RESTORE):
            made = self.deployer.run(history.RESTORE, history.changes_restored(self.journal, ident), progress, Terms())
        self._done(made, progress)

    def prune(self) -> list[Backup]:
        """Remove and return the backups older than keep_days, except the keep_backups newest of each component."""
        with self.deployer.changing(deploy.PRUNE):
            oldest = time.time() - self.options.keep_days * 86400
            seen: collections.Counter[str] = collections.Counter()
            dropped = []
            for backup in self.journal.backups():
                seen[backup.component] += 1
                if seen[backup.component] > self.options.keep_backups and backup.made < oldest:
                    dropped.append(backup)
            for backup in reversed(dropped):  # The oldest backup first, so that an interruption keeps the newest ones.
                self.journal.drop_backup(backup.id, containers.BACKUP)
            self.deployer.containers.clean_up()
            return dropped

    def _done(self, deployment: Deployment, progress: Progress) -> None:
        names = [change.name for change in deployment.changes]
        elsewhere = self.journal.participations([deployment.id]).get(deployment.id, ())
        words = ", ".join([*names, *(f"{part.components} on {part.node}" for part in elsewhere if part.components)])
        progress("", f"deployment {deployment.id} is {deployment.state}: {words}"
                 if deployment.state == DONE and words else "there was nothing to do")
        self._forget(names)
        with contextlib.suppress(Busy, Refused):  # The running change prunes backups when it ends.
            for backup in self.prune():
                LOG.info("Removed backup %d of component %s (%s): it is older than %d days", backup.id,
                         backup.component, backup.version, self.options.keep_days)

    def _forget(self, names: Iterable[str]) -> None:
        """Delete the health history of components."""
        for name in names:
            for records in (self._failures, self._starts, self._unhealthy, self._checked):
                records.pop(name, None)

    def _existing(self, names: Sequence[str], current: dict[str, Deployed]) -> list[str]:
        for name in names:
            if name not in current:
                raise NotKnown(f"Component {name} is not deployed{' on this node' if self.coordinator else ''}.")
        return self.deployer.order(names or current)

    def states(self) -> list[pb.ComponentState]:
        """Return the deployed components in the order of the platform file; components missing in it are last."""
        containers = {present.name: present for present in self.runtime.containers(self.deployer.platform.name)}
        current, file = self.journal.components(), self.deployer.platform.components
        states = []
        order = [*(name for name in file if name in current),
                 *(name for name in self.deployer.order(current) if name not in file)]
        for name in order:
            deployed, container = current[name], containers.get(self.deployer.containers.name(name))
            state, why, started = MISSING, "", 0.0
            if container is not None and container.running:
                why, started = self._unhealthy.get(name, ""), container.started
                state = UNHEALTHY if why else RUNNING
            elif container is not None:
                state, why = STOPPED, f"ended with {container.exit_code}"
            states.append(pb.ComponentState(
                name=name, version=deployed.version, state=state, node=self.options.name, started=started, health=why,
                image=deployed.component.reference(), digest=deployed.digest or deployed.image,
                deployment=deployed.deployment))
        return states

    def _keep(self) -> None:
        while True:
            try:
                self.check_components()
            except Exception as error:  # The next check may succeed, whatever the error is.
                LOG.exception("The check of components failed, retrying at the next interval: %s", error)
            if self.deployer.ending.wait(self.options.interval):
                return

    def check_components(self) -> None:
        """Undo interrupted deployments, start components that do not run, and restart unhealthy ones."""
        if self.journal.unfinished():
            try:
                with contextlib.suppress(Busy, Cancelled):
                    self.deployer.recover(_log_progress)
            except ReportedError as error:
                LOG.warning("Cannot roll back an interrupted deployment, retrying at the next check: %s", error)
        with contextlib.suppress(Busy), self.deployer.alone(deploy.HEALTH_CHECK):
            unfinished = self.journal.unfinished()
            if not unfinished:
                self.deployer.containers.clean_up(_log_progress)
            changing = {change.name for deployment in unfinished for change in deployment.changes}
            current = self.journal.components()
            for name in self.deployer.order(current):
                if self.deployer.awaited:
                    return  # A slow runtime must not block changes while all components are checked.
                if name not in changing:
                    self._check_component(current[name])

    def _check_component(self, deployed: Deployed) -> None:
        name, container = deployed.name, self.deployer.containers.name(deployed.name)
        try:
            state = self.runtime.find(container)
            if state is None or not state.running:
                self._start_again(deployed, "it is missing" if state is None else f"it ended with {state.exit_code}")
                return
            self._check(deployed, state.started)
            if name in self._starts and name not in self._failures and (
                    time.monotonic() > self._starts[name][1] + _CALM):
                del self._starts[name]
        except Exception as error:  # Other components are checked, whatever the error is.
            LOG.warning("Cannot check or restart component %s, retrying at the next check: %s", name, error)

    def _start_again(self, deployed: Deployed, why: str, stop: bool = False) -> None:
        """Start a component, or restart it (``stop``), if the pause after its previous start has ended."""
        times, last = self._starts.get(deployed.name, (0, 0.0))
        if times and time.monotonic() < last + min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(times, 10)):
            return
        if stop:
            self.deployer.containers.stop(deployed)
        LOG.warning("Starting component %s again, reason: %s", deployed.name, why)
        self._starts[deployed.name] = (times + 1, time.monotonic())
        self._failures.pop(deployed.name, None)
        self.deployer.containers.begin(deployed)

    def _check(self, deployed: Deployed, started: float) -> None:
        check, name = deployed.component.health, deployed.name
        now = time.monotonic()
        if check is None or now < self._checked.get(name, 0.0) + check.interval:
            return
        self._checked[name] = now
        try:
            self.deployer.containers.check(deployed)
        except containers.Unhealthy as error:
            if 0 <= time.time() - started < check.start:
                return  # In the grace period. A start time in the future was recorded before a change of the clock.
            self._failures[name] = self._failures.get(name, 0) + 1
            self._unhealthy[name] = error.message
            if self._failures[name] >= check.retries:
                self._start_again(deployed, error.message, stop=True)
        else:
            self._failures.pop(name, None)
            self._unhealthy.pop(name, None)


def _log_progress(name: str, what: str) -> None:
    LOG.info("Rollback or cleanup of %s: %s", f"component {name}" if name else "the platform", what)
