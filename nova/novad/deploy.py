"""Deployments: all of the components that are named are changed, or none of them is.

A deployment goes through stages, each written to the journal before it begins:

    fetch    all images are there, and are the ones that were expected
    backup   components with data (and those that write the data of others) are stopped, and their data copied
    apply    in the order of dependencies: the container is made anew, started, and waited for until it is healthy
    undo     after any failure: new containers are removed, data are put back, the ones before are made and started

Each can be done again from its beginning. A daemon that was killed in the middle puts the platform back when it starts
(:meth:`Deployer.recover`): only the last transaction of the journal makes a deployment true.
"""

from __future__ import annotations

import logging
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from nova.novad import health
from nova.novad.data import Data
from nova.novad.errors import Busy, Cancelled, Failed, ImageFault, NotKnown, NovadError, Refused
from nova.novad.journal import DONE, STUCK, UNDONE, Change, Deployed, Deployment, Journal
from nova.novad.platform import Platform, fill, in_order
from nova.novad.runtime.base import COMPONENT, DEPLOYMENT, PLATFORM, Image, Mount, Runtime, Wanted
from nova.novad.secrets import Secrets

LOG = logging.getLogger(__name__)

FETCH, BACKUP, APPLY, UNDO = "fetch", "backup", "apply", "undo"
DEPLOY, ROLLBACK, REMOVE, ROTATE, BACK_UP = "deploy", "rollback", "remove", "rotate", "backup"

_NOT_YET = " It could not be put back yet: "

# (component, what happens with it): for whoever watches
Progress = Callable[[str, str], None]


class Deployer:
    """One of a node. One deployment at a time: another one meanwhile raises Busy."""

    def __init__(self, platform: Platform, journal: Journal, runtime: Runtime, data: Data, secrets: Secrets) -> None:
        self.platform = platform
        self.journal = journal
        self.runtime = runtime
        self.data = data
        self.secrets = secrets
        self.ending = threading.Event()
        self.lock = threading.Lock()

    def container(self, name: str) -> str:
        return f"{self.platform.name}-{name}"

    # --- what there is to do -----------------------------------------------------------------------
    def plan(self, wanted: Mapping[str, str]) -> list[Change]:
        """What deploying these components (all, if none is named) at these versions ("": the platform file's) would
        do; images that are not fetched yet have no id. Raises NotKnown."""
        current = self.journal.components()
        names = self.platform.order(wanted or None) if all(
            self.platform.component(name) for name in wanted) else []
        changes = []
        for name in names:
            component = self.platform.component(name)
            if wanted.get(name):
                component = component.of_version(wanted[name])
            changes.append(Change(name=name, before=current.get(name),
                                  after=Deployed(name=name, component=component, image="")))
        return changes

    def plan_rollback(self, names: Sequence[str], to: int | None) -> list[Change]:
        """Back to how these components (all, if none is named) were after deployment ``to`` (None: before the last one
        that changed them), image and data. Raises NotKnown, Refused."""
        current = self.journal.components()
        for name in names:
            if name not in current:
                raise NotKnown(f"Component {name} is not deployed.")
        chosen = list(names) or sorted(current)
        changes = {}
        for name in chosen:
            found = self._earlier(name, current[name], to)
            if found is not None:
                changes[name] = found
        if not changes:
            raise Refused("There is nothing to go back to: no earlier deployment of "
                          f"{', '.join(chosen) or 'any component'}{f' up to {to}' if to else ''} is known.")
        for change in list(changes.values()):
            self._with_data_of(change, current, changes)
        return [changes[name] for name in self.order(changes)]

    def _earlier(self, name: str, now: Deployed, to: int | None) -> Change | None:
        """The deployed component of the past, and the data that it left."""
        for deployment in self._done():
            if deployment.id >= now.deployment or (to is not None and deployment.id > to):
                continue
            for change in deployment.changes:
                if change.name == name and change.after is not None and change.after.deployment == deployment.id:
                    return Change(name=name, before=now, after=msgspec.structs.replace(change.after, wanted=True),
                                  restore=self._copy_of(name, self._left_in(change.after)))
        return None

    def _left_in(self, deployed: Deployed) -> int:
        """The last deployment that put another one in its place, and copied the data before."""
        return next((deployment.id for deployment in self._done() for change in deployment.changes
                     if change.name == deployed.name and change.before is not None
                     and change.before.deployment == deployed.deployment and change.after != change.before), 0)

    def _copy_of(self, name: str, deployment: int) -> int:
        """The backup of a component's data that a deployment made; 0: none."""
        return next((backup.id for backup in self.journal.backups(name) if backup.deployment == deployment), 0)

    def _with_data_of(self, change: Change, current: Mapping[str, Deployed], changes: dict[str, Change]) -> None:
        """The data that the component wrote elsewhere go back with it, to the same moment as its own."""
        assert change.before is not None
        assert change.after is not None
        for owner in change.before.component.data_of:
            backup = self._copy_of(owner, self._left_in(change.after))
            if owner not in changes and owner in current and backup:
                changes[owner] = Change(name=owner, before=current[owner], after=current[owner], restore=backup)

    def _done(self) -> list[Deployment]:
        return [deployment for deployment in self.journal.deployments(1000) if deployment.state == DONE]

    def order(self, names: Iterable[str]) -> list[str]:
        """By the dependencies of what is deployed and what is in the platform file."""
        current = self.journal.components()
        components = {**{name: one.component for name, one in current.items()}, **self.platform.components}
        known = {name: [each for each in one.depends if each in components] for name, one in components.items()}
        wanted = set(names)
        return [name for name in in_order(known) if name in wanted]

    # --- carrying it out ---------------------------------------------------------------------------
    def run(self, kind: str, changes: Sequence[Change], progress: Progress, renew: Sequence[str] = ()) -> Deployment:
        """Raises Busy, Refused, Failed (the platform is as before), and ImageFault before anything was touched.

        ``renew``: secrets that get new values, in a rotation.
        """
        if not self.lock.acquire(blocking=False):
            raise Busy("Another deployment is under way; nova history shows it.")
        try:
            if self.journal.unfinished():
                raise Busy("An earlier deployment has still to be put back; nova history shows it.")
            return self._run(kind, list(changes), progress, renew)
        finally:
            self.lock.release()

    def _run(self, kind: str, changes: list[Change], progress: Progress, renew: Sequence[str]) -> Deployment:
        begun = self.journal.begin(kind, FETCH, changes)
        try:
            changes = self._fetched(begun.id, kind, changes, progress)
            if not changes and not renew:
                self.journal.finish(begun.id, DONE, [])
                return self._known(begun.id)
            self._check(changes)
            self.journal.advance(begun.id, BACKUP, changes)
            self._back_up(begun.id, changes, progress)
            self.secrets.keep(renew)
            self.journal.advance(begun.id, APPLY)
            for name in renew:
                self.secrets.renew(name, self.platform.secrets[name])
            changes = self._apply(kind, changes, progress)
            self.journal.advance(begun.id, APPLY, changes)
            self.journal.finish(begun.id, DONE, changes)
        except Cancelled:
            raise
        except NovadError as error:
            LOG.warning("Deployment %d (%s) failed: %s; it is put back", begun.id, kind, error.message)
            self._undo(begun.id, error.message, progress)
            if isinstance(error, Refused | ImageFault):
                raise
            raise Failed(f"{error.message} All is as it was before.") from error
        LOG.info("Deployment %d (%s) is done: %s", begun.id, kind, ", ".join(change.name for change in changes))
        return self._known(begun.id)

    def _known(self, ident: int) -> Deployment:
        found = self.journal.deployment(ident)
        assert found is not None
        return found

    def _fetched(self, ident: int, kind: str, changes: list[Change], progress: Progress) -> list[Change]:
        """With the images' ids, without those that change nothing, with those whose data they change."""
        current = self.journal.components()
        kept: dict[str, Change] = {}
        for change in changes:
            if change.after is None or change.after.image:
                if change.after is not None and not self.runtime.has_image(change.after.image):
                    progress(change.name, f"fetching {change.after.digest}")
                    self._fetch(change.after.component.image + "@" + change.after.digest, change.after.digest)
                kept[change.name] = change
                continue
            component = change.after.component
            progress(change.name, f"fetching {component.reference()}")
            image = self._fetch(component.reference(), component.digest)
            before = change.before
            if kind == DEPLOY and before is not None and before.wanted and (before.image, before.component) == (
                    image.ident, component):
                progress(change.name, "is up to date")
                continue
            kept[change.name] = msgspec.structs.replace(change, after=Deployed(
                name=change.name, component=component, image=image.ident, digest=image.digest, deployment=ident))
        for change in list(kept.values()):
            for owner in change.after.component.data_of if change.after else ():
                if owner in current and owner not in kept:
                    kept[owner] = Change(name=owner, before=current[owner], after=current[owner])
        return [kept[name] for name in self.order(kept)]

    def _fetch(self, reference: str, digest: str) -> Image:
        image = self.runtime.fetch(reference)
        if digest and image.digest != digest:
            raise ImageFault(f"{reference} is {image.digest}, and {digest} was expected.")
        return image

    def _check(self, changes: Sequence[Change]) -> None:
        """What can be known before anything stops."""
        self.data.check_room(sum(self.data.size(change.name, change.before.component) for change in changes
                                 if change.before is not None))
        for change in changes:
            if change.after is not None:
                self.secrets.make({name: self.platform.secrets[name] for name in change.after.component.secrets()
                                   if name in self.platform.secrets})
                self.secrets.values(change.after.component.secrets())

    def _back_up(self, ident: int, changes: Sequence[Change], progress: Progress) -> None:
        writers = [change for change in changes if change.before is not None
                   and (change.before.component.volumes or change.before.component.data_of)]
        for change in reversed(writers):
            assert change.before is not None
            progress(change.name, "stopping")
            self.runtime.stop(self.container(change.name), change.before.component.stop_timeout)
        for change in changes:
            component = change.before or change.after
            if component is None or not component.component.volumes or not self.data.holds(change.name):
                continue
            progress(change.name, "backing up its data")
            place, size = self.data.back_up(change.name, component.component, ident)
            self.journal.add_backup(change.name, ident, change.before or msgspec.structs.replace(
                component, deployment=0, version="unknown"), place, size)

    def _apply(self, kind: str, changes: Sequence[Change], progress: Progress) -> list[Change]:
        """Removals first, the last ones in the order of dependencies before the others; then the rest."""
        applied: list[Change] = []
        for change in reversed(changes):
            if change.after is None:
                progress(change.name, "removing")
                assert change.before is not None
                self.runtime.stop(self.container(change.name), change.before.component.stop_timeout)
                self.runtime.remove(self.container(change.name))
                applied.append(change)
        for change in changes:
            if change.after is None:
                continue
            after = change.after
            if kind == ROTATE or change.before != after or change.restore:
                self._replace(change, progress)
            else:
                progress(change.name, "starting")
                self.runtime.start(self.container(change.name))
            progress(change.name, "waiting until it is healthy")
            self._wait(after)
            version = self._version(after)
            progress(change.name, f"runs version {version}")
            applied.append(msgspec.structs.replace(change, after=msgspec.structs.replace(after, version=version)))
        return applied

    def _replace(self, change: Change, progress: Progress) -> None:
        assert change.after is not None
        if change.before is not None:
            progress(change.name, "stopping")
            self.runtime.stop(self.container(change.name), change.before.component.stop_timeout)
        self.runtime.remove(self.container(change.name))
        if change.restore:
            progress(change.name, "putting back its data")
            self._restore(change.name, change.restore)
        progress(change.name, f"starting {change.after.component.reference()}")
        self.make(change.after)
        self.runtime.start(self.container(change.name))

    def _restore(self, name: str, ident: int) -> None:
        backup = next((one for one in self.journal.backups(name) if one.id == ident), None)
        if backup is None:
            raise NotKnown(f"There is no backup {ident} of {name}.")
        self.data.restore(name, backup.path)

    def _wait(self, deployed: Deployed) -> None:
        try:
            health.wait(self.runtime, self.container(deployed.name), deployed.component, self.ending.is_set)
        except health.Unhealthy as error:
            raise Failed(f"Component {deployed.name} does not become healthy: {error.message}.") from None

    def _version(self, deployed: Deployed) -> str:
        """What its version command prints; without one, or if that fails, the name of the version."""
        component = deployed.component
        if component.version_command:
            code, output = self.runtime.execute(self.container(deployed.name), component.version_command, 10.0)
            if code == 0 and output.strip():
                return output.strip().splitlines()[0][:200]
        return component.tag

    def begin(self, deployed: Deployed) -> None:
        """Have it run: in its container, which is made if it is not there."""
        if self.runtime.find(self.container(deployed.name)) is None:
            self.make(deployed)
        self.runtime.start(self.container(deployed.name))

    def bring_up(self, deployed: Deployed) -> None:
        """Have it run, and wait until it is healthy. Raises Failed."""
        self.begin(deployed)
        self._wait(deployed)

    def make(self, deployed: Deployed) -> None:
        """The container of a component as it was deployed, in place of any other."""
        name, component = deployed.name, deployed.component
        for network in component.networks:
            self.runtime.make_network(f"{self.platform.name}-{network}")
        self.data.prepare(name, component)
        secrets = self.secrets.values(component.secrets())
        files = self.data.write_files(name, component, secrets)
        self.runtime.create(Wanted(
            name=self.container(name), image=deployed.image, command=component.command,
            env={key: fill(value, secrets) for key, value in component.env.items()},
            mounts=(*(Mount(self.data.volume(name, volume.name), volume.destination, volume.options)
                      for volume in component.volumes),
                    *(Mount(file, destination, ("ro",)) for destination, file in files.items()),
                    *(Mount(pathlib.Path(bind.source), bind.destination, bind.options) for bind in component.binds)),
            ports=component.ports, networks=tuple(f"{self.platform.name}-{each}" for each in component.networks),
            aliases=(name,), user=component.user, privileged=component.privileged,
            capabilities=component.capabilities, devices=component.devices, stop_timeout=component.stop_timeout,
            labels={PLATFORM: self.platform.name, COMPONENT: name, DEPLOYMENT: str(deployed.deployment)}))

    # --- putting back ------------------------------------------------------------------------------
    def recover(self, progress: Progress) -> list[Deployment]:
        """Put back what a daemon that was killed left half done. Raises Busy; faults leave it for the next time."""
        if not self.lock.acquire(blocking=False):
            raise Busy("A deployment is under way.")
        try:
            found = self.journal.unfinished()
            for deployment in found:
                LOG.warning("Deployment %d (%s) was cut short in stage %s; it is put back", deployment.id,
                            deployment.kind, deployment.stage)
                error = deployment.error.partition(_NOT_YET)[0] or "novad ended in the middle of it."
                self._undo(deployment.id, error, progress)
            return found
        finally:
            self.lock.release()

    def _undo(self, ident: int, error: str, progress: Progress) -> None:
        """Raises Failed when it cannot be put back now: the journal remembers it, and so does recover()."""
        deployment = self._known(ident)
        try:
            if deployment.stage != FETCH:
                if deployment.stage != BACKUP:
                    self.journal.advance(ident, UNDO)
                    self._put_back_data(ident, deployment.changes, progress)
                    if deployment.kind == ROTATE:
                        self.secrets.put_back()
                self._put_back_containers(deployment.changes, progress)
        except NovadError as fault:
            self.journal.finish(ident, STUCK, [], f"{error}{_NOT_YET}{fault.message}")
            raise Failed(f"{error}{_NOT_YET}{fault.message} novad goes on trying.") from fault
        self.journal.finish(ident, UNDONE, [], error)

    def _put_back_data(self, ident: int, changes: Sequence[Change], progress: Progress) -> None:
        copies = {backup.component: backup for backup in self.journal.backups() if backup.deployment == ident}
        for change in reversed(changes):
            progress(change.name, "undo: stopping")
            stopping = change.after or change.before
            assert stopping is not None
            self.runtime.stop(self.container(change.name), stopping.component.stop_timeout)
            self.runtime.remove(self.container(change.name))
        for change in changes:
            if change.name in copies:
                progress(change.name, "undo: putting back its data")
                self.data.restore(change.name, copies[change.name].path)
            elif change.before is None:
                # It had none before: what a first start left half done would disturb the next one.
                self.data.remove(change.name)

    def _put_back_containers(self, changes: Sequence[Change], progress: Progress) -> None:
        for change in changes:
            before = change.before
            if before is None:
                self.data.remove_files(change.name)
                continue
            if self.runtime.find(self.container(change.name)) is None:
                self.make(before)
            if before.wanted:
                progress(change.name, "undo: starting the one before")
                self.runtime.start(self.container(change.name))
        for change in changes:
            if change.before is not None and change.before.wanted:
                try:
                    health.wait(self.runtime, self.container(change.name), change.before.component, self.ending.is_set)
                except health.Unhealthy as error:
                    LOG.warning("Component %s is back, but not healthy: %s", change.name, error.message)
