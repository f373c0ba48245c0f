"""Deployments: atomic changes of several components.

A deployment goes through stages, each written to the journal before it begins:

    fetch    pull all images and compare them with the expected digests
    backup   stop the components with data, those that write the data of other components, and those that depend on
             a stopped component; copy the data
    apply    in the order of dependencies: create the container, start it, and wait until it is healthy

After a failure new containers are removed and data restored; then, as after the stage backup, the previous containers
are created and started. Each stage can be repeated. A daemon that was killed restores the platform when it starts
(:meth:`Deployer.recover`): a deployment is committed by the last transaction of the journal.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from nova.common.errors import Invalid, Refused, ReportedError, os_error_text
from nova.novad.deployment import history
from nova.novad.deployment import journal as outcomes
from nova.novad.deployment.containers import UNNAMED, Containers, Progress, label
from nova.novad.deployment.data import Data
from nova.novad.deployment.history import BACK_UP, DEPLOY, REMOVE, ROTATE
from nova.novad.deployment.journal import Change, CleanupTask, Deployed, Deployment, Journal, Origin
from nova.novad.errors import Busy, Cancelled, Failed, ImageFault, shortened
from nova.novad.platform import Platform, in_order
from nova.novad.runtime.podman import Podman
from nova.novad.secrets import Secrets

LOG = logging.getLogger(__name__)

FETCH, BACKUP, APPLY = "fetch", "backup", "apply"
RESTART, PRUNE, HEALTH_CHECK = "restart", "prune", "health check"

_SHOWN = 10  # Maximum number of paths of an image in an error.
_NOT_YET = " The rollback is not finished: "


class Others(Protocol):
    """The other nodes of a deployment. Requests to them are written to the journal before they are sent."""

    def prepare(self, ident: int, assignments: Sequence[Any], progress: Progress) -> None:
        """Fetch the images on the nodes without changing components. Raises Refused, Failed."""

    def apply(self, ident: int, assignments: Sequence[Any], progress: Progress) -> None:
        """Apply the changes of the nodes, which then wait for the decision. Raises Refused, Failed."""

    def settle(self, ident: int, done: bool, progress: Progress) -> list[str]:
        """Send the decision to the nodes. Return the nodes that did not receive it: sending is retried later."""


class Terms(msgspec.Struct, frozen=True):
    """Options of a deployment. ``renew``: secrets that get new values, which are random if they are "".
    ``assignments``: assignments of other nodes. ``origin``: the control node that requested the deployment and decides
    about it. ``drop_data``, ``drop_secrets``: a removal includes the data and the secrets."""

    renew: Mapping[str, str] = {}
    assignments: Sequence[Any] = ()
    origin: Origin | None = None
    drop_data: bool = False
    drop_secrets: bool = False


class Deployer:
    """The deployer of a node. One deployment runs at a time; a second one raises Busy."""

    def __init__(self, platform: Platform, journal: Journal, runtime: Podman, data: Data, secrets: Secrets) -> None:
        self.platform, self.journal, self.runtime = platform, journal, runtime
        self.data, self.secrets = data, secrets
        self.others: Others | None = None
        history.record_missing(journal)
        self.ending = threading.Event()
        self.containers = Containers(lambda: self.platform.name, journal, runtime, data, secrets, self.ending)
        self._turn = threading.Condition()
        self._doing = ""
        self.awaited = 0  # Number of changes that wait for the end of a health check.

    @contextlib.contextmanager
    def alone(self, what: str) -> Iterator[None]:
        """Lock out other changes; wait for a running health check. Raises Busy."""
        with self._turn:
            if what != HEALTH_CHECK:
                self.awaited += 1
                self._turn.wait_for(lambda: self._doing != HEALTH_CHECK)
                self.awaited -= 1
            if self._doing:
                raise Busy(f"Another deployment is in progress ({self._doing}); see nova history.")
            self._doing = what
        try:
            yield
        finally:
            with self._turn:
                self._doing = ""
                self._turn.notify_all()

    @contextlib.contextmanager
    def changing(self, what: str) -> Iterator[None]:
        """Lock out other changes for a request of a client, after pending rollbacks have finished. Raises Busy."""
        with self.alone(what):
            if self.journal.unfinished():
                raise Busy("The rollback of an earlier deployment is not finished; see nova history.")
            if (waits := self.journal.pending()) is not None:
                origin = self.journal.origins([waits.id])[waits.id]
                raise Busy(f"Deployment {waits.id} waits for the control node {origin.node}; see nova history.")
            # The next deployment must not use data that are still to be removed.
            if left := self.containers.clean_up():
                raise Refused(f"A removal is not finished: {'; '.join(left)}. Nothing was changed.")
            yield

    def idle(self, seconds: float) -> bool:
        """Wait until no change is in progress; return False if one still is after ``seconds``."""
        with self._turn:
            return self._turn.wait_for(lambda: not self._doing, seconds)

    def plan(self, wanted: Mapping[str, str]) -> list[Change]:
        """Return the changes that a deployment of ``wanted`` makes: {name: version}, "" for the version in the platform
        file. If empty: all components of the file, and removal of others. Raises NotKnown, Invalid, Refused."""
        current = self.journal.components()
        for name in wanted:
            self.platform.component(name)
        file = self.platform.components
        changes = [] if wanted else [change for change in self.removals() if change.name not in file]
        for name in self.order(wanted or file):
            component = self.platform.component(name)
            if wanted.get(name):
                component = component.of_version(wanted[name])
            changes.append(Change(name=name, before=current.get(name),
                                  after=Deployed(name=name, component=component, image="")))
        after = {**current, **{change.name: change.after for change in changes}}
        for name, component in [(change.name, change.after.component) for change in changes if change.after]:
            required = dict.fromkeys([*component.depends, *component.data_of])
            if lacking := [other for other in required if not after.get(other)]:
                raise Refused(f"{name} depends on components that are not deployed: {', '.join(lacking)}. "
                              "Deploy these, too (without names: all components). Nothing was changed.")
        return changes

    def removals(self) -> list[Change]:
        current = self.journal.components()
        return [Change(name=name, before=current[name]) for name in self.order(current)]

    def rotations(self, names: Iterable[str]) -> list[Change]:
        """Return the changes that recreate the components that use these secrets."""
        current = self.journal.components()
        return [Change(name=name, before=current[name], after=current[name]) for name in self.order(current)
                if current[name].component.secrets() & set(names)]

    def order(self, names: Iterable[str], of: Iterable[Deployed | None] = ()) -> list[str]:
        """Sort by the dependencies of deployed components, of the platform file and of the components in ``of``."""
        file = self.platform.components
        components = {**{name: deployed.component for name, deployed in self.journal.components().items()}, **file,
                      **{deployed.name: deployed.component for deployed in of if deployed is not None}}
        wanted = set(names)
        dependencies = {name: [dependency for dependency in component.depends if dependency in components]
                        for name, component in components.items()}
        try:
            order = in_order(dependencies)
        except Invalid:  # Components of several platform files form a cycle: only the current file counts.
            order = in_order({name: depends if components[name] == file.get(name) else []
                              for name, depends in dependencies.items()})
        return [name for name in order if name in wanted]

    def run(self, kind: str, changes: list[Change], progress: Progress, terms: Terms) -> Deployment:
        """Execute a deployment, within :meth:`changing`. Raises Refused, ImageFault (nothing changed), Failed (state
        restored)."""
        begun = self.journal.begin(kind, FETCH, changes, terms.origin)
        try:
            changes = self._fetched(begun.id, kind, changes, progress)
            self._carry_out(begun, changes, progress, terms)
        except Cancelled:
            raise
        except Exception as error:
            why = shortened(self.secrets.masker().text(_sentence(error)))
            LOG.warning("Deployment %d (%s) failed, rolling it back: %s", begun.id, kind, why)
            left = self._undo(begun.id, why, progress)
            if isinstance(error, Refused | ImageFault):
                error.message = self.secrets.masker().text(error.message)
                raise
            raise Failed(f"{why} The previous state was restored{left}.") from error
        if terms.origin is None:
            history.record_digests(self.journal, self._deployment(begun.id).changes)
            self.containers.clean_up(progress)
            LOG.info("Deployment %d (%s) succeeded: %s", begun.id, kind, ", ".join(change.name for change in changes))
            if self.others is not None and terms.assignments:
                for node in self.others.settle(begun.id, True, progress):
                    progress("", f"{node} does not answer; it receives the decision when it answers again")
        return self._deployment(begun.id)

    def _carry_out(self, begun: Deployment, changes: list[Change], progress: Progress, terms: Terms) -> None:
        """Deploy here and on other nodes. All nodes are prepared before any component stops."""
        ident, kind = begun.id, begun.kind
        others = self.others if terms.assignments else None
        self._check(kind, changes, terms.drop_data)
        for change in changes if terms.drop_data else ():
            container = self.runtime.find(self.containers.name(change.name))
            for volume in container.volumes if container is not None else ():
                self.journal.set_fact(f"{UNNAMED}{volume}", change.name)
        if others is not None:
            others.prepare(ident, terms.assignments, progress)
        self.journal.advance(ident, BACKUP, changes)
        self._back_up(begun, changes, progress)
        self.secrets.keep(terms.renew)
        self.journal.advance(ident, APPLY)
        for name, value in terms.renew.items():
            self.secrets.renew(name, self.platform.secrets[name], value)
        if kind != REMOVE:
            changes = self._apply(kind, changes, progress)
        if others is not None:
            self._go_on()
            others.apply(ident, terms.assignments, progress)
        if kind == REMOVE:  # Components of other nodes use those of this node, so they are removed first.
            changes = self._apply(kind, changes, progress)
        self.journal.advance(ident, APPLY, changes)
        if terms.origin is not None:
            self.journal.finish(ident, outcomes.PENDING, changes)
        else:
            self._commit(ident, self.containers.removal_tasks(terms.drop_data, terms.drop_secrets))

    def _commit(self, ident: int, removals: Sequence[CleanupTask]) -> Deployment:
        deployment = self._deployment(ident)
        cleanup = [*removals, *self.containers.tasks_after(deployment.changes)]
        self.journal.finish(ident, outcomes.DONE, deployment.changes, cleanup=cleanup,
                            states=history.states_made(self.journal, deployment))
        return deployment

    def prepare(self, kind: str, changes: list[Change], progress: Progress) -> None:
        """Fetch and check the images of a deployment, within :meth:`changing`. Raises the exceptions of run()."""
        self._check(kind, self._fetched(0, kind, changes, progress), True)  # run() checks the data that are removed.

    def decide(self, ident: int, done: bool, progress: Progress, removals: Sequence[CleanupTask] = ()) -> None:
        """Commit or undo the pending changes, within :meth:`alone`; a commit stores the removals. Raises Failed."""
        if done:
            deployment = self._commit(ident, removals)
            history.record_digests(self.journal, deployment.changes)
            self.containers.clean_up(progress)
        else:
            self.journal.reopen(ident)
            self._undo(ident, "The control node decided to undo the deployment.", progress)
        LOG.info("Deployment %d is %s, as the control node decided", ident, "done" if done else "undone")

    def _deployment(self, ident: int) -> Deployment:
        deployment = self.journal.deployment(ident)
        assert deployment is not None
        return deployment

    def _fetched(self, ident: int, kind: str, changes: list[Change], progress: Progress) -> list[Change]:
        """Fetch images. Return the changes with image ids, without ineffective ones, plus owners of changed data."""
        current = self.journal.components()
        fetched: dict[str, Change] = {}
        for change in changes:
            self._go_on()
            if change.after is not None and change.after.image:
                self.containers.have_image(change.after, progress)
            elif change.after is not None:
                component, before = change.after.component, change.before
                progress(change.name, f"fetching {component.reference()}")
                image = self.containers.fetch(component.reference(), component.digest)
                if recorded := history.former_digest(self.journal, component, image.digest):
                    raise Refused(f"{component.image}:{component.tag} is not the image that was deployed: the registry "
                                  f"has {image.digest}, the recorded digest is {recorded}. If that is intended: nova "
                                  f"deploy {change.name}={component.tag}@{image.digest}. Nothing was changed.")
                if kind == DEPLOY and before is not None and before.image == image.ident and (
                        msgspec.structs.replace(before.component, digest=component.digest) == component):
                    progress(change.name, "is up to date")
                    continue
                change = msgspec.structs.replace(change, after=Deployed(
                    name=change.name, component=component, image=image.ident, digest=image.digest, deployment=ident))
            fetched[change.name] = change
        for change in list(fetched.values()):
            for owner in change.after.component.data_of if change.after else ():
                if owner in current and owner not in fetched:
                    fetched[owner] = Change(name=owner, before=current[owner], after=current[owner])
        # Components of a rollback may have dependencies that the platform file lacks.
        return [fetched[name] for name in self.order(fetched, [
            change.after or change.before for change in fetched.values()])]

    def _check(self, kind: str, changes: Sequence[Change], drop_data: bool) -> None:
        """Check all conditions that can be checked before a component stops. Raises Refused, ImageFault, Invalid."""
        for change in changes if kind != BACK_UP else ():
            self._check_data_paths(kind, change, drop_data)
        self.data.check_room([self.data.size(change.name, change.volumes) for change in changes])
        for change in changes:
            if change.after is not None:
                self.secrets.make({name: self.platform.secrets[name] for name in change.after.component.secrets()
                                   if name in self.platform.secrets})
                self.secrets.values(change.after.component.secrets())

    def _check_data_paths(self, kind: str, change: Change, drop_data: bool) -> None:
        """Raise Refused if a container with data outside of its mounts would be removed by the change or by its undo
        (earlier releases of novad created such containers), or if the new container would store such data."""
        before, after, paths = change.before, change.after, list[str]()
        if before is not None and self.runtime.has_image(before.image):
            paths += before.component.uncovered(self.runtime.data_paths(before.image))
        if after is not None and _remakes(kind, change):
            paths += self.runtime.data_paths(after.image)
        deployed = after or (None if drop_data else before)
        if deployed is None or not (lacking := deployed.component.uncovered(paths)):
            return
        more = f" and {len(lacking) - _SHOWN} more paths" if len(lacking) > _SHOWN else ""
        shown = ", ".join(path if path.isprintable() else ascii(path) for path in lacking[:_SHOWN])
        way_out = "Add a volume with this destination to the component" if after else (
            "Remove the data with the components (nova remove --remove-volumes), or first deploy the component with a "
            "volume")
        raise Refused(f"Component {deployed.name}: the image {deployed.component.reference()} stores data at {shown}"
                      f"{more}, which the component does not name. The data would be lost whenever the container is "
                      f"removed or created again. {way_out}, with backup = false if the data are disposable, or a "
                      "bind. Copy existing data from the container before (podman cp). Nothing was changed.")

    def _back_up(self, begun: Deployment, changes: Sequence[Change], progress: Progress) -> None:
        dumped = {change.name for change in changes if begun.kind == BACK_UP and change.before is not None
                  and change.before.component.dump and self.containers.running(change.name)}
        # A component that the journal lost may still run.
        before = {change.name: state for change in changes if (state := change.before or change.after) is not None
                  and (change.before is not None or self.containers.running(change.name))}
        stopping: list[str] = []  # Components that write data, and those that depend on a stopped component.
        for name in self.order(before, before.values()):
            component = before[name].component
            if name not in dumped and (component.volumes or component.data_of or {*component.depends} & {*stopping}):
                stopping.append(name)
        for name in reversed(stopping):
            progress(name, "stopping")
            self.containers.stop(before[name])
        for change in changes:
            writer, volumes = change.before or change.after, change.volumes
            is_backed_up = change.before is not None and any(volume.backup for volume in volumes)
            if writer is None or not (is_backed_up or self.data.holds(change.name, volumes)):
                # No volumes, or a new component: an empty backup would mean that an earlier state had no data.
                continue
            if change.name in dumped:
                progress(change.name, "dumping its data")
                place = self.data.place(change.name, label(begun))
                size = self.containers.dump(writer, place)
            else:
                progress(change.name, "backing up its data")
                place, size = self.data.back_up(change.name, volumes, label(begun))
            self.journal.add_backup(change.name, begun.id, change.before or msgspec.structs.replace(
                writer, deployment=0, version="unknown"), place, size)

    def _apply(self, kind: str, changes: Sequence[Change], progress: Progress) -> list[Change]:
        """Apply removals first, in reverse order of dependencies, then the other changes."""
        applied: list[Change] = []
        for change in reversed(changes):
            if change.after is None and change.before is not None:
                progress(change.name, "removing")
                self.containers.remove(change.before)
                applied.append(change)
        for change in changes:
            if change.after is None:
                continue
            self._go_on()
            dump = ""
            if not _remakes(kind, change):
                progress(change.name, "starting")
            else:
                if change.before is not None and self.containers.running(change.name):
                    progress(change.name, "stopping")
                    self.containers.stop(change.before)
                self.runtime.remove(self.containers.name(change.name))
                if change.restore or change.state:
                    progress(change.name, "restoring its data")
                    dump = self.containers.restore_backup(change)
                progress(change.name, f"starting {change.after.component.reference()}")
                self.containers.make(change.after)
            self.runtime.start(self.containers.name(change.name))
            progress(change.name, "waiting until it is healthy")
            self.containers.wait(change.after)
            if dump:
                progress(change.name, "reading its dump")
                self.containers.restore_dump(change.after, dump)
                self.containers.wait(change.after)
            after = msgspec.structs.replace(change.after, version=self.containers.version(change.after))
            progress(change.name, f"runs version {after.version}")
            applied.append(msgspec.structs.replace(change, after=after))
        return applied

    def _go_on(self) -> None:
        """Raise Cancelled if novad is stopping."""
        if self.ending.is_set():
            raise Cancelled("novad is stopping; the deployment is rolled back when novad starts again.")

    def recover(self, progress: Progress) -> list[Deployment]:
        """Roll back changes that a killed daemon left unfinished. Raises Busy, and errors; the caller retries later."""
        with self.alone("rollback after an interruption"):
            unfinished = self.journal.unfinished()
            for deployment in unfinished:
                LOG.warning("Deployment %d (%s) was interrupted in stage %s: rolling it back", deployment.id,
                            deployment.kind, deployment.stage)
                error = deployment.error.partition(_NOT_YET)[0] or "novad ended during the deployment."
                self._undo(deployment.id, error, progress)
            self.containers.clean_up(progress)
            return unfinished

    def _undo(self, ident: int, error: str, progress: Progress) -> str:
        """Undo a deployment, on other nodes first. Returns a text about nodes that did not receive the decision, or "".
        Raises Failed if the undo cannot finish now: the journal keeps it for recover()."""
        deployment = self._deployment(ident)
        left = self.others.settle(ident, False, progress) if self.others is not None else []
        try:
            if deployment.stage != FETCH:
                if deployment.stage != BACKUP:
                    if deployment.kind != BACK_UP:  # A backup changes no component.
                        self.containers.restore_data(ident, deployment.changes, progress)
                    self.secrets.put_back()
                    self.journal.advance(ident, BACKUP)  # A retry keeps data written after this restoration.
                self.containers.restore_containers(deployment.changes, progress)
                self.containers.remove_partial_backups(deployment)
        except Cancelled:
            raise
        except Exception as fault:
            error = f"{error}{_NOT_YET}{shortened(self.secrets.masker().text(_sentence(fault)))}"
            self.journal.finish(ident, outcomes.STUCK, [], error)
            raise Failed(f"{error} novad keeps retrying.") from fault
        # The deployment was pending: the previously deployed components are current again.
        before = [] if deployment.stage == FETCH else [
            Change(name=change.name, after=change.before) for change in deployment.changes]
        words = f"; {', '.join(left)} did not answer, and will be undone when they answer again" if left else ""
        self.journal.finish(ident, outcomes.UNDONE, before, error.removesuffix(".") + words + "." if words else error,
                            self.containers.tasks_after(deployment.changes, undone=True))
        self.containers.clean_up(progress)
        return words


def _remakes(kind: str, change: Change) -> bool:
    """Return True if the change puts a new container in the place of the component's current one."""
    return kind == ROTATE or change.before != change.after or bool(change.restore or change.state)


def _sentence(error: Exception) -> str:
    text = (error.message if isinstance(error, ReportedError) else os_error_text(error) if isinstance(error, OSError)
            else f"{type(error).__name__}: {error}")
    return text if text.endswith((".", "!", "?")) else f"{text}."
