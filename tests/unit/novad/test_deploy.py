"""Deployments are atomic, also if a step fails or novad is killed."""

from __future__ import annotations

import pathlib

import msgspec
import pytest

from nova.common.errors import NotKnown, Refused, ReportedError
from nova.novad.deployment import history
from nova.novad.deployment.data import Data
from nova.novad.deployment.deploy import Deployer, Terms
from nova.novad.deployment.journal import DONE, STUCK, UNDONE, Change, Journal
from nova.novad.errors import Busy, Failed, ImageFault, RuntimeFault
from nova.novad.secrets import Secrets
from tests.unit.novad.platforms import parse
from tests.unit.novad.runtimes import FakeRuntime, Killed, content

TEXT = """
name = "suite"
[secrets.db]
length = 12
[components.db]
image = "registry/db"
version = "1"
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
volumes = [{name = "rows", destination = "/rows"}]
version_command = ["version"]
[components.conductor]
image = "registry/conductor"
version = "1"
depends = ["db"]
data_of = ["db"]
env = {URL = "db://user:${secret:db}@db"}
files = {"/etc/conductor.conf" = "password = ${secret:db}"}
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
version_command = ["version"]
[components.api]
image = "registry/api"
version = "1"
depends = ["conductor"]
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
"""
ORDER = ("db", "conductor", "api")
REGISTRY = {f"registry/{name}:{version}": "good" for name in ORDER for version in "1234"} | {
    "registry/conductor:bad": "broken", "registry/conductor:sick": "sick", "registry/db:bad": "broken"}


class Node:
    """A node whose daemon may be killed and started again."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self.runtime = FakeRuntime(dict(REGISTRY))
        self.told: list[tuple[str, str]] = []
        self.start()

    def start(self, text: str = TEXT) -> None:
        self.runtime.before = lambda _verb, _name: None
        self.deployer = Deployer(parse(text, "toml"), Journal(self.directory / "journal.sqlite"), self.runtime,
                                 Data(self.directory), Secrets(self.directory / "secrets"))

    def deploy(self, **versions: str):
        return self.run(history.DEPLOY, self.deployer.plan(versions))

    def rollback(self, *names: str, to: int | None = None):
        return self.run(history.ROLLBACK, history.changes_back(self.deployer.journal, names, to))

    def run(self, kind, changes):
        with self.deployer.changing(kind):
            return self.deployer.run(kind, changes, lambda name, what: self.told.append((name, what)), Terms())

    def recover(self):
        return self.deployer.recover(lambda _name, _what: None)

    def versions(self) -> dict[str, str]:
        """Return the running versions from the runtime; the journal must agree."""
        running = {name.removeprefix("suite-"): self.runtime.images[self.runtime.made[name].image][0].rpartition(":")[2]
                   for name in sorted(self.runtime.running)}
        known = {name: one.component.tag for name, one in self.deployer.journal.components().items()}
        assert running == known
        return running

    def rows(self) -> list[str]:
        """Return the rows of the database's data, written by the started versions."""
        return [line.rpartition(":")[2] for line in content(self.directory / "volumes").get(
            "db/rows/written", "").splitlines()]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


@pytest.fixture
def deployed(node):
    node.deploy()
    return node


def test_deploy_starts_all_components_in_dependency_order(node):
    done = node.deploy()
    assert (done.state, node.versions()) == (DONE, {"db": "1", "conductor": "1", "api": "1"})
    started = [name for name, what in node.told if what.startswith("starting")]
    assert started == ["db", "conductor", "api"]
    assert node.deployer.journal.components()["db"].version == "1 of the program"


def test_up_to_date_components_are_not_restarted(deployed):
    before = dict(deployed.runtime.running)
    assert deployed.deploy().state == DONE
    assert deployed.runtime.running == before
    assert deployed.deploy(api="2").state == DONE
    assert deployed.versions() == {"db": "1", "conductor": "1", "api": "2"}
    assert deployed.runtime.running["suite-db"] == before["suite-db"]


@pytest.mark.parametrize("kind", [history.DEPLOY, history.REMOVE, history.ROTATE])
def test_dependent_components_stop_before_their_dependencies(deployed, kind):
    users = {"suite-db": {"suite-conductor", "suite-api"}, "suite-conductor": {"suite-api"}, "suite-api": set()}
    stops = []
    current = deployed.deployer.journal.components()
    changes = {
        history.DEPLOY: deployed.deployer.plan({"db": "2", "conductor": "2", "api": "2"}),
        history.REMOVE: [Change(name=name, before=current[name]) for name in ORDER],
        history.ROTATE: [Change(name=name, before=current[name], after=current[name]) for name in ORDER],
    }[kind]
    deployed.runtime.before = lambda verb, name: stops.append(
        (name, set(deployed.runtime.running))) if verb in ("stop", "remove") else None
    deployed.run(kind, changes)
    assert {name for name, _running in stops} == users.keys()
    assert [(name, running) for name, running in stops if name in running and users[name] & running] == []


def test_unknown_component_or_version_is_refused_before_any_stop(deployed):
    before = dict(deployed.runtime.running)
    with pytest.raises(NotKnown, match=r"Component dbb does not exist .* api, conductor, db"):
        deployed.deploy(dbb="1")
    with pytest.raises(ImageFault, match="registry/db:9 cannot be fetched"):
        deployed.deploy(api="2", db="9")
    assert (deployed.runtime.running, deployed.versions()["api"]) == (before, "1")


def test_component_with_undeployed_dependency_is_refused_and_data_are_unchanged(deployed):
    current = deployed.deployer.journal.components()
    deployed.run(history.REMOVE, [Change(name=name, before=current[name]) for name in ORDER])
    rows = deployed.rows()
    with pytest.raises(Refused, match="conductor depends on components that are not deployed: db"):
        deployed.deploy(conductor="2")
    assert (deployed.versions(), deployed.rows()) == ({}, rows)
    deployed.deploy(db="1", conductor="2")
    deployed.deploy(api="1")
    assert deployed.versions() == {"db": "1", "conductor": "2", "api": "1"}


def suite(**depends):
    """A platform file; ``a="c"``: component a depends on c."""
    return 'name = "suite"\n' + "".join(
        f'[components.{name}]\nimage = "registry/api"\nversion = "1"\ndepends = {needed.split()}\n'
        'health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}\n' for name, needed in depends.items())


def test_rollback_restores_a_dependency_missing_from_the_platform_file(node):
    node.start(suite(cache="", api="cache"))
    node.deploy()
    node.start(suite(api=""))
    node.deploy()
    assert node.rollback().state == DONE
    assert node.deployer.journal.components()["api"].component.depends == ("cache",)
    node.deploy()
    assert node.rollback(to=1).state == DONE


def test_rollback_starts_components_in_the_restored_dependency_order(node):
    node.start(suite(a="c", c=""))
    node.deploy()
    node.start(suite(a="", c=""))
    node.deploy(a="2", c="2")
    node.told.clear()
    node.rollback(to=1)
    assert [name for name, what in node.told if what.startswith("starting")] == ["c", "a"]


def test_circular_dependencies_across_platform_file_versions_are_tolerated(node):
    node.start(suite(a="c", c=""))
    node.deploy()
    node.start(suite(a="", c="a"))
    node.deploy(c="2")
    node.start(suite(new=""))
    order = node.deployer.order(["a", "c", "new"])
    assert sorted(order) == ["a", "c", "new"]
    node.deploy()
    assert node.versions() == {"new": "1"}


def test_image_with_a_different_digest_is_refused(deployed):
    change, = deployed.deployer.plan({"api": ""})
    component = change.after.component.of_version("2")
    wanted = change.after.__replace__ if hasattr(change.after, "__replace__") else None
    component = msgspec.structs.replace(component, digest="sha256:" + "0" * 64, version="")
    assert wanted is None or wanted
    deployed.runtime.registry[f"registry/api@sha256:{'0' * 64}"] = "good"
    with pytest.raises(ImageFault):
        deployed.run(history.DEPLOY, [msgspec.structs.replace(change, after=msgspec.structs.replace(
            change.after, component=component))])
    assert deployed.versions()["api"] == "1"


# Every operation recreates the conductor container, whose image declares a volume that no mount covers.
REMAKES = {
    "deploy": lambda node: node.deploy(conductor="2"),
    "all": lambda node: node.deploy(conductor="2", api="2"),
    "env": lambda node: (node.start(TEXT.replace("user:$", "other:$")), node.deploy()),
    "rollback": lambda node: node.rollback("conductor", to=1),
    "rotate": lambda node: node.run(history.ROTATE, [
        Change(name=name, before=one, after=one) for name, one in node.deployer.journal.components().items()]),
}


@pytest.mark.parametrize("act", REMAKES)
def test_image_with_unmounted_data_volume_is_refused_before_any_stop(node, act):
    node.deploy()
    if act == "rollback":
        node.deploy(conductor="2")
    for version in "12":
        node.runtime.data[f"registry/conductor:{version}"] = ("/var/lib/conductor", "/etc/conductor.conf")
    before = (dict(node.runtime.running), node.versions(), content(node.directory / "volumes"))
    with pytest.raises(Refused, match=r"conductor: the image .* stores data at /var/lib/conductor, .*backup = false"):
        REMAKES[act](node)
    assert (dict(node.runtime.running), node.versions(), content(node.directory / "volumes")) == before
    assert node.deployer.journal.deployments()[0].state == UNDONE


@pytest.mark.parametrize(("declared", "covered"), [
    ("/data", True), ("/data/", True), ("//data", True), ("data", True), ("/data/inner", True), ("/host/x/y", True),
    ("/cache", True), ("/etc/file", True), ("/", False), ("/dat", False), ("/data2", False), ("/host", False),
    ("/data/../other", False)])
def test_declared_volume_is_covered_by_a_mount_at_its_path_or_above(node, declared, covered):
    node.start("""
name = "suite"
[components.db]
image = "registry/db"
version = "1"
volumes = [{name = "rows", destination = "/data/"}, {name = "cache", destination = "/cache", backup = false}]
binds = [{source = "/dev", destination = "/host/x"}]
files = {"/etc/file" = "text"}
health = {command = ["ok"], interval = 0.1, timeout = 1, start = 0.5}
""")
    node.runtime.data["registry/db:1"] = (declared,)
    if covered:
        assert node.deploy().state == DONE
    else:
        with pytest.raises(Refused, match="stores data at"):
            node.deploy()
        assert node.runtime.made == {}


def test_backup_is_possible_for_an_image_with_unmounted_data_volume(deployed):
    deployed.runtime.data["registry/db:1"] = ("/elsewhere",)
    current = deployed.deployer.journal.components()
    deployed.run(history.BACK_UP, [Change(name="db", before=current["db"], after=current["db"])])
    assert deployed.deployer.journal.backups("db")


# Changes that remove or recreate the container of the database, or would do so when they are undone.
LOSSES = {
    "owner of data": lambda node: node.deploy(conductor="bad"),
    "removal": lambda node: node.run(history.REMOVE, node.deployer.removals()),
    "left the file": lambda node: (node.start(WITHOUT_DB), node.deploy()),
    "image without the volume": lambda node: node.deploy(db="2"),
}
WITHOUT_DB = """
name = "suite"
[components.api]
image = "registry/api"
version = "1"
"""


@pytest.mark.parametrize("act", LOSSES)
def test_data_of_an_earlier_release_outside_of_volumes_are_not_removed(deployed, act):
    deployed.runtime.data["registry/db:1"] = ("/rows", "/elsewhere")
    verbs = []
    made, running = dict(deployed.runtime.made), dict(deployed.runtime.running)
    start = deployed.start

    def watched_start(*text):
        start(*text)
        deployed.runtime.before = lambda verb, _name: verbs.append(verb)

    deployed.start = watched_start
    deployed.runtime.before = lambda verb, _name: verbs.append(verb)
    with pytest.raises(Refused, match=r"Component db: .* stores data at /elsewhere, which .*volume.*podman cp"):
        LOSSES[act](deployed)
    assert (deployed.runtime.made, deployed.runtime.running) == (made, running)
    assert set(verbs) <= {"fetch"}


def test_components_with_data_outside_of_volumes_are_removed_together_with_data(deployed):
    deployed.runtime.data["registry/db:1"] = ("/elsewhere",)
    deployed.deployer.run(history.REMOVE, deployed.deployer.removals(), lambda _name, _what: None,
                          Terms(drop_data=True))
    assert deployed.runtime.made == {}


def test_component_without_container_and_image_is_removed(deployed):
    deployed.runtime.data["registry/db:1"] = ("/elsewhere",)
    deployed.runtime.made.clear()
    deployed.runtime.running.clear()
    deployed.runtime.images.clear()
    deployed.run(history.REMOVE, deployed.deployer.removals())
    assert deployed.deployer.journal.components() == {}


def test_volume_dropped_from_image_and_component_is_no_reason_to_refuse(deployed):
    deployed.runtime.data["registry/db:1"] = ("/rows",)
    deployed.start(TEXT.replace('volumes = [{name = "rows", destination = "/rows"}]\n', ""))
    assert deployed.deploy(db="2").state == DONE


@pytest.mark.parametrize("version", ["bad", "sick"])
def test_unhealthy_upgrade_is_rolled_back_with_database_data(deployed, version):
    rows = deployed.rows()
    with pytest.raises(Failed, match=r"conductor does not become healthy: .* The previous state was restored"):
        deployed.deploy(db="2", conductor=version, api="2")
    assert deployed.versions() == {"db": "1", "conductor": "1", "api": "1"}
    assert deployed.rows() == [*rows, "1"]  # Version 1 started again; no data of version 2.
    last = deployed.deployer.journal.deployments()[0]
    assert (last.state, "does not become healthy" in last.error) == (UNDONE, True)


def test_failed_first_deployment_leaves_no_containers_or_data(node):
    with pytest.raises(Failed):
        node.deploy(db="1", conductor="bad", api="1")
    assert (node.versions(), node.runtime.made, content(node.directory / "volumes")) == ({}, {}, {})
    assert node.deploy().state == DONE


def test_rollback_by_two_versions_restores_image_and_data(deployed):
    first = deployed.rows()
    deployed.deploy(db="2", conductor="2")
    deployed.deploy(db="3")
    done = deployed.rollback("db", to=1)
    assert (done.state, deployed.versions()) == (DONE, {"db": "1", "conductor": "2", "api": "1"})
    assert deployed.rows() == [*first, "1"]
    # The data from before the rollback are backed up.
    assert next(backup.version for backup in deployed.deployer.journal.backups("db")) == "3 of the program"


def test_rollback_restores_data_written_to_another_component(deployed):
    first = deployed.rows()
    deployed.deploy(conductor="2")
    with (deployed.directory / "volumes/db/rows/written").open("a") as file:
        file.write("a column of conductor 2\n")
    deployed.rollback("conductor")
    assert (deployed.versions()["conductor"], deployed.rows()) == ("1", [*first, "1"])


def test_component_without_previous_version_has_no_rollback(deployed):
    assert history.changes_back(deployed.deployer.journal, ["db"], None) == []
    with pytest.raises(NotKnown):
        deployed.rollback("dbb")


def test_full_disk_refuses_the_deployment_before_any_stop(deployed, monkeypatch):
    before = dict(deployed.runtime.running)
    monkeypatch.setattr("nova.novad.deployment.data.shutil.disk_usage",
                        lambda _path: type("Usage", (), {"free": 1000})())
    with pytest.raises(Refused, match="Nothing was changed"):
        deployed.deploy(db="2")
    assert (deployed.runtime.running, deployed.versions()["db"]) == (before, "1")


def test_disk_full_during_backup_rolls_back_the_deployment(deployed, monkeypatch):
    def full(*_arguments):
        raise ReportedError("no space left")
    monkeypatch.setattr(deployed.deployer.data, "back_up", full)
    with pytest.raises(Failed, match=r"no space left\. The previous state was restored"):
        deployed.deploy(db="2")
    assert deployed.versions()["db"] == "1"


def test_files_and_networks_of_a_removed_component_are_deleted_with_retries(node):
    text = TEXT.replace("[secrets.db]", 'networks = ["inner", "outer"]\n[secrets.db]').replace(
        'depends = ["db"]', 'depends = ["db"]\nnetworks = ["inner"]').replace(
        'depends = ["conductor"]', 'depends = ["conductor"]\nnetworks = ["outer"]\nfiles = {"/a" = "${secret:db}"}')
    node.start(text)
    node.deploy()
    assert node.runtime.networks == {"suite-inner", "suite-outer"}
    node.start(text.partition("[components.api]")[0])

    def refuse(verb, _name):
        if verb == "remove network":
            raise RuntimeFault("it is in use")
    node.runtime.before = refuse
    assert node.deploy().state == DONE
    assert (sorted(path.name for path in (node.directory / "files").iterdir()), node.runtime.networks) == (
        ["conductor", "db"], {"suite-inner", "suite-outer"})
    node.runtime.before = lambda _verb, _name: None
    node.deploy()
    assert (node.runtime.networks, node.deployer.journal.cleanup_tasks()) == ({"suite-inner"}, [])


@pytest.fixture
def dumping(node):
    node.start(TEXT.replace("[components.conductor]", 'dump = ["dump"]\nrestore = ["load"]\n[components.conductor]'))
    node.deploy()
    return node


def back_up(node):
    current = node.deployer.journal.components()
    node.run(history.BACK_UP, [Change(name="db", before=current["db"], after=current["db"])])
    return node.deployer.journal.backups("db")[0]


def test_component_with_dump_command_is_backed_up_online_and_restored(dumping):
    rows, since = dumping.rows(), dict(dumping.runtime.running)
    made = back_up(dumping)
    assert dumping.runtime.running == since
    assert (made.size, content(dumping.directory / made.path)) == (
        len("a dump\nregistry/db:1\n"), {".dump": "a dump\nregistry/db:1\n"})
    assert (dumping.directory / made.path / ".dump").stat().st_mode & 0o777 == 0o600
    dumping.deploy(db="2")
    assert dumping.rows() == [*rows, "2"]
    restore = history.changes_restored(dumping.deployer.journal, made.id)
    assert dumping.run(history.RESTORE, restore).state == DONE
    assert (dumping.versions()["db"], dumping.rows()) == ("1", rows)
    # A copy made by the restore is restored in the same way.
    copy = next(one for one in dumping.deployer.journal.backups("db") if one.version == "2 of the program")
    dumping.run(history.RESTORE, history.changes_restored(dumping.deployer.journal, copy.id))
    assert (dumping.versions()["db"], dumping.rows()[:2]) == ("2", [*rows, "2"])


@pytest.mark.parametrize("what", ["dump", "restore"])
def test_failed_dump_or_restore_rolls_back(dumping, what):
    made = back_up(dumping)
    rows, kept = dumping.rows(), content(dumping.directory / "backups")

    def fails(name, command, *_more):
        raise RuntimeFault("podman: it broke off")
    dumping.runtime.pipe = fails
    restore = history.changes_restored(dumping.deployer.journal, made.id)
    act = (lambda: back_up(dumping)) if what == "dump" else lambda: dumping.run(history.RESTORE, restore)
    with pytest.raises(Failed, match=r"it broke off\. The previous state was restored"):
        act()
    assert dumping.rows() == (rows if what == "dump" else [*rows, "1"])
    assert kept.items() <= content(dumping.directory / "backups").items()
    assert not [name for name in content(dumping.directory / "backups") if ".dump" in name and name not in kept]


def test_failed_dump_command_output_is_reported(dumping):
    current = dumping.deployer.journal.components()["db"]
    other = msgspec.structs.replace(current, component=msgspec.structs.replace(current.component, dump=("none",)))
    with pytest.raises(Failed, match="The dump command of db failed with exit code 3: the program says why"):
        dumping.run(history.BACK_UP, [Change(name="db", before=other, after=other)])


def test_restore_of_a_missing_or_pruned_backup_is_refused(dumping):
    with pytest.raises(NotKnown, match="Backup 9 does not exist"):
        history.changes_restored(dumping.deployer.journal, 9)
    made = back_up(dumping)
    dumping.deployer.journal.drop_backup(made.id, "backup")
    with pytest.raises(Refused, match=r"removed \(keep"):
        history.changes_restored(dumping.deployer.journal, made.id)


def test_concurrent_deployment_is_refused(deployed):
    def meanwhile(verb, _name):
        if verb == "stop":
            deployed.runtime.before = lambda _verb, _name: None
            with pytest.raises(Busy):
                deployed.deploy(api="2")
    deployed.runtime.before = meanwhile
    assert deployed.deploy(db="2").state == DONE


def test_recovery_is_refused_during_a_deployment_and_does_not_roll_it_back(deployed):
    def meanwhile(verb, _name):
        if verb == "stop":
            deployed.runtime.before = lambda _verb, _name: None
            with pytest.raises(Busy, match=r"Another deployment is in progress \(deploy\)"):
                deployed.recover()
    deployed.runtime.before = meanwhile
    assert deployed.deploy(db="2").state == DONE
    assert deployed.versions() == {"db": "2", "conductor": "1", "api": "1"}


def test_unavailable_runtime_is_retried_and_the_deployment_rolled_back(deployed):
    def away(verb, name):
        if (verb, name) == ("create", "suite-conductor"):
            deployed.runtime.away = True
    deployed.runtime.before = away
    with pytest.raises(Failed, match="novad keeps retrying"):
        deployed.deploy(db="2", conductor="2")
    assert deployed.deployer.journal.deployments()[0].state == STUCK
    with pytest.raises(Busy, match="rollback of an earlier deployment is not finished"):
        deployed.deploy(api="2")
    deployed.runtime.away, deployed.runtime.before = False, lambda _verb, _name: None
    deployed.recover()
    assert deployed.versions() == {"db": "1", "conductor": "1", "api": "1"}
    assert deployed.deploy(api="2").state == DONE


def effects(node, act) -> int:
    """Return the number of effects of a deployment."""
    seen: list[str] = []
    node.runtime.before = lambda verb, name: seen.append(f"{verb} {name}")
    act(node)
    return len(seen)


UPGRADE = lambda node: node.deploy(db="2", conductor="2", api="2")  # noqa: E731
BACK = lambda node: node.rollback("db", "conductor", to=1)  # noqa: E731


@pytest.mark.parametrize(("prepare", "act", "versions"), [
    (lambda node: None, UPGRADE, {"db": "1", "conductor": "1", "api": "1"}),
    (UPGRADE, BACK, {"db": "2", "conductor": "2", "api": "2"}),
], ids=["deploy", "rollback"])
def test_novad_killed_at_any_step_rolls_back_on_restart(tmp_path, prepare, act, versions):
    whole = Node(tmp_path / "whole") if (tmp_path / "whole").mkdir() is None else None
    whole.deploy()
    prepare(whole)
    count = effects(whole, act)
    assert count > 8
    for number in range(count):
        place = tmp_path / str(number)
        place.mkdir()
        node = Node(place)
        node.deploy()
        prepare(node)
        rows = node.rows()
        left = [number]

        def kill(_verb, _name, left=left):
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        node.runtime.before = kill
        with pytest.raises(Killed):
            act(node)
        # Kill novad again during the recovery.
        node.start()
        left[0] = 1
        node.runtime.before = kill
        try:
            node.recover()
        except Killed:
            node.start()
            node.recover()
        assert node.versions() == versions, number
        assert [row for row in node.rows() if row not in versions["db"]] == [
            row for row in rows if row not in versions["db"]], number
        node.start()
        assert act(node).state == DONE


def test_secrets_in_runtime_errors_are_masked(deployed):
    value = deployed.deployer.secrets.values(["db"])["db"]

    def refuse(verb, name):
        if (verb, name) == ("create", "suite-conductor") and deployed.runtime.networks is not None:
            deployed.runtime.before = lambda _verb, _name: None
            raise RuntimeFault(f"podman: invalid environment URL=db://user:{value}@db")
    deployed.runtime.before = refuse
    with pytest.raises(Failed, match=r"invalid environment URL=db://user:\*{8}@db"):
        deployed.deploy(conductor="2")
    assert value not in deployed.deployer.journal.deployments()[0].error
