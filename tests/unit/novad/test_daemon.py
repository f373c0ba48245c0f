"""Automatic recovery by the daemon, and the requests that it refuses."""

import shutil
import threading
import time

import msgspec
import pytest

from nova.common.errors import Invalid, NotKnown, Refused
from nova.novad import daemon as module
from nova.novad.daemon import Daemon
from nova.novad.deployment import deploy, history
from nova.novad.deployment.journal import DONE, Change, CleanupTask
from nova.novad.errors import Busy, Failed
from nova.novad.options import Options
from tests.functional.client import wait_for
from tests.unit.novad.platforms import parse
from tests.unit.novad.runtimes import FakeRuntime, Killed, content
from tests.unit.novad.test_deploy import REGISTRY, TEXT

QUIET = lambda _name, _what: None  # noqa: E731


class Clock:
    """A fake clock that advances only when a test changes ``now``."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now

    def time(self):
        return time.time() + self.now


@pytest.fixture
def options(tmp_path):
    return Options(data_dir=str(tmp_path), keep_backups=1, keep_days=0)


@pytest.fixture
def runtime():
    return FakeRuntime(dict(REGISTRY))


@pytest.fixture
def daemon(options, runtime):
    daemon = Daemon(options, parse(TEXT, "toml"), runtime)
    daemon.deploy({}, QUIET)
    return daemon


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


def state(daemon, name):
    return next(one.state for one in daemon.states() if one.name == name)


def starts(runtime):
    """Return the containers started from now on."""
    seen = []
    runtime.before = lambda verb, name: seen.append(name) if verb == "start" else None
    return seen


def test_exited_component_is_restarted_with_growing_delays(daemon, runtime, clock):
    seen, moments = starts(runtime), []
    for _second in range(40):
        runtime.running.pop("suite-api", None)
        before = len(seen)
        daemon.check_components()
        if len(seen) > before:
            moments.append(clock.now - 1000)
        clock.now += 1
    assert set(seen) == {"suite-api"}
    assert moments == [0, 2, 6, 14, 30]


def test_component_that_fails_for_days_is_restarted_every_five_minutes(daemon, runtime, clock):
    seen = starts(runtime)
    for _restart in range(1100):
        runtime.running.pop("suite-api", None)
        daemon.check_components()
        clock.now += 300
    assert len(seen) == 1100


def test_restart_delay_is_reset_after_a_stable_period(daemon, runtime, clock):
    for _time in range(3):
        runtime.running.pop("suite-api")
        daemon.check_components()
        clock.now += 100
        daemon.check_components()
    runtime.running.pop("suite-api")
    daemon.check_components()
    assert "suite-api" in runtime.running


def test_removed_container_is_recreated(daemon, runtime):
    runtime.remove("suite-db")
    assert state(daemon, "db") == module.MISSING
    daemon.check_components()
    assert state(daemon, "db") == module.RUNNING


def test_missing_image_is_pulled_by_its_digest(daemon, runtime):
    runtime.remove("suite-db")
    image, = [ident for ident, (reference, _kind) in runtime.images.items() if reference == "registry/db:1"]
    runtime.lost[image] = runtime.images.pop(image)
    daemon.check_components()
    assert (state(daemon, "db"), image in runtime.images) == (module.RUNNING, True)


def test_component_that_stays_unhealthy_is_restarted(daemon, runtime, clock):
    image = runtime.made["suite-api"].image
    good, runtime.images[image] = runtime.images[image], ("registry/api:1", "sick")
    seen = starts(runtime)
    for number in range(3):
        assert seen == [], number
        clock.now += 10
        daemon.check_components()
        assert state(daemon, "api") == module.UNHEALTHY
    assert seen == ["suite-api"]
    runtime.images[image] = good
    clock.now += 10
    daemon.check_components()
    assert state(daemon, "api") == module.RUNNING


def test_interrupted_deployment_is_rolled_back_by_the_first_check(options, daemon, runtime):
    def kill(verb, name):
        if (verb, name) == ("create", "suite-conductor"):
            raise Killed
    runtime.before = kill
    with pytest.raises(Killed):
        daemon.deploy({"conductor": "2"}, QUIET)
    runtime.before = lambda _verb, _name: None
    again = Daemon(options, parse(TEXT, "toml"), runtime)
    with pytest.raises(Busy, match="rollback of an earlier deployment is not finished"):
        again.restart([], QUIET)
    again.check_components()
    assert {one.image.rpartition(":")[2] for one in again.states()} == {"1"}
    assert {one.state for one in again.states()} == {module.RUNNING}


def test_component_check_is_retried_after_an_unavailable_runtime(daemon, runtime):
    runtime.running.pop("suite-api")
    runtime.away = True
    daemon.check_components()
    runtime.away = False
    daemon.check_components()
    assert state(daemon, "api") == module.RUNNING


def test_deployment_waits_for_a_running_health_check(daemon, runtime):
    with daemon.deployer.alone(deploy.HEALTH_CHECK):
        import threading
        thread = threading.Thread(target=daemon.deploy, args=({"api": "2"}, QUIET))
        thread.start()
    thread.join(30)
    assert daemon.journal.components()["api"].component.tag == "2"
    with daemon.deployer.alone(history.DEPLOY), pytest.raises(Busy):
        daemon.deploy({"api": "3"}, QUIET)


def test_component_removed_from_the_platform_file_is_removed_by_next_deployment(options, daemon, runtime):
    text = TEXT[:TEXT.index("[components.api]")]
    daemon = Daemon(options, parse(text, "toml"), runtime)
    daemon.deploy({"db": "2"}, QUIET)
    assert "suite-api" in runtime.running
    daemon.deploy({}, QUIET)
    assert "suite-api" not in runtime.made
    assert set(daemon.journal.components()) == {"db", "conductor"}


def test_deployed_platform_cannot_be_renamed(options, daemon, runtime):
    renamed = parse(TEXT.replace('"suite"', '"other"'), "toml")
    with pytest.raises(Invalid, match="components of platform suite are deployed"):
        Daemon(options, renamed, runtime)
    daemon.remove(False, False, QUIET)
    assert Daemon(options, renamed, runtime).states() == []


def test_remove_retains_data_and_secrets_by_default(daemon, runtime, tmp_path):
    daemon.remove(False, False, QUIET)
    assert (runtime.made, daemon.states(), daemon.secrets.names()) == ({}, [], ["db"])
    assert content(tmp_path / "volumes")
    assert content(tmp_path / "files") == {}
    daemon.deploy({}, QUIET)
    daemon.remove(True, True, QUIET)
    assert (content(tmp_path / "volumes"), daemon.secrets.names()) == ({}, [])
    assert daemon.journal.backups("db")


def test_backup_that_waited_records_the_component_deployed_meanwhile(daemon):
    before = daemon.journal.components()["db"]
    meanwhile = Change(name="db", before=before, after=msgspec.structs.replace(before, digest="sha256:new"))
    with daemon.deployer.alone(deploy.HEALTH_CHECK):
        backup = threading.Thread(target=daemon.back_up, args=("db", QUIET))
        backup.start()
        wait_for(lambda: daemon.deployer.awaited, 10, "the backup waits")
        daemon.journal.finish(daemon.journal.begin(history.DEPLOY, deploy.APPLY, []).id, DONE, [meanwhile])
    backup.join()
    assert daemon.journal.backups("db")
    assert daemon.journal.components()["db"] == meanwhile.after


def test_rollback_to_pruned_data_is_refused(daemon):
    for version in ("2", "3"):
        daemon.deploy({"db": version}, QUIET)
    assert len(daemon.journal.backups("db")) == 1
    with pytest.raises(Refused, match=r"removed \(keep"):
        daemon.rollback(["db"], 1, QUIET)
    daemon.rollback(["db"], 2, QUIET)
    assert daemon.journal.components()["db"].component.tag == "2"


def test_rollback_can_be_reverted_by_a_rollback(daemon):
    daemon.deploy({"api": "2"}, QUIET)
    daemon.rollback(["api"], 1, QUIET)
    daemon.rollback(["api"], 2, QUIET)
    assert daemon.journal.components()["api"].component.tag == "2"
    with pytest.raises(Refused, match="Nothing to roll back to"):
        daemon.rollback(["api"], 2, QUIET)


def test_rollback_skips_deployments_without_changes(daemon):
    daemon.deploy({"db": "2"}, QUIET)
    daemon.deploy({"db": "2"}, QUIET)
    assert daemon.journal.deployments()[0].changes == []
    with pytest.raises(Refused, match="Nothing to roll back to"):
        daemon.rollback(["db"], 3, QUIET)
    daemon.rollback(["db"], None, QUIET)
    assert daemon.journal.components()["db"].component.tag == "1"


def test_failed_first_upgrade_with_data_leaves_no_data(options, runtime, tmp_path):
    """Data written by the failed version are deleted, since the previous version had no data."""
    daemon = Daemon(options, parse(TEXT, "toml"), runtime)
    daemon.deploy({}, QUIET)
    daemon.runtime.stop("suite-db", 1)
    daemon.data.clear("db", "rows")
    (tmp_path / "volumes/db/rows").mkdir(parents=True)
    runtime.registry["registry/db:sick"] = "sick"
    with pytest.raises(Failed):
        daemon.deploy({"db": "sick"}, QUIET)
    assert "sick" not in "".join(content(tmp_path / "volumes").values())


def test_failed_rotation_restores_the_old_secret(daemon, runtime):
    before = daemon.secrets.values(["db"])
    image = runtime.made["suite-conductor"].image

    def broken(verb, name):
        if (verb, name) == ("create", "suite-conductor"):
            runtime.images[image] = ("registry/conductor:1", "broken")
            runtime.before = lambda verb, _name: runtime.images.update(
                {image: ("registry/conductor:1", "good")}) if verb == "stop" else None
    runtime.before = broken
    with pytest.raises(Failed):
        daemon.rotate(["db"], QUIET)
    assert daemon.secrets.values(["db"]) == before
    assert runtime.made["suite-conductor"].env["URL"] == f"db://user:{before['db']}@db"
    daemon.rotate(["db"], QUIET)
    assert daemon.secrets.values(["db"]) != before
    with pytest.raises(NotKnown):
        daemon.rotate(["none"], QUIET)


@pytest.mark.parametrize("option", ["secret_file", "key_file"])
def test_empty_secret_or_key_file_is_refused(tmp_path, option):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(Invalid, match=f"{option}: .* is empty"):
        Daemon(Options(data_dir=str(tmp_path / "data"), **{option: str(tmp_path / "empty")}), parse(TEXT, "toml"),
               FakeRuntime({})).shared_secret()


def test_remove_deletes_data_when_no_component_is_deployed(daemon, tmp_path):
    daemon.remove(False, False, QUIET)
    assert content(tmp_path / "volumes")
    daemon.remove(True, True, QUIET)
    assert (content(tmp_path / "volumes"), daemon.secrets.names()) == ({}, [])


def test_backward_clock_step_does_not_delay_restart_of_an_unhealthy_component(daemon, runtime, clock):
    runtime.images[runtime.made["suite-api"].image] = ("registry/api:1", "sick")
    runtime.running["suite-api"] = clock.time() + 86400
    seen = starts(runtime)
    for _look in range(3):
        clock.now += 10
        daemon.check_components()
    assert seen == ["suite-api"]


def test_change_waits_for_the_check_of_a_single_component(daemon, runtime):
    looked, waits, found = [], threading.Event(), runtime.find

    def slow(name):
        looked.append(name)
        assert waits.wait(20)
        while not daemon.deployer.awaited and not looked[1:]:
            time.sleep(0.001)
        return found(name)
    runtime.find = slow
    look = threading.Thread(target=daemon.check_components)
    look.start()
    wait_for(lambda: looked, 20)
    change = threading.Thread(target=daemon.prune)
    change.start()
    waits.set()
    look.join(20)
    change.join(20)
    assert set(looked) == {"suite-db"}


def test_failed_cleanup_does_not_stop_component_checks(daemon, runtime, monkeypatch):
    def refuse(_self):
        raise PermissionError(1, "Operation not permitted")
    monkeypatch.setattr("nova.novad.secrets.Secrets.forget", refuse)
    daemon.journal.finish(daemon.journal.begin("rotate", "apply", []).id, "done", [], cleanup=[
        CleanupTask(kind="kept secrets", name="")])
    runtime.remove("suite-api")
    daemon.check_components()
    assert (state(daemon, "api"), len(daemon.journal.cleanup_tasks())) == (module.RUNNING, 1)
    monkeypatch.undo()
    daemon.check_components()
    assert daemon.journal.cleanup_tasks() == []


def test_component_with_a_broken_disk_does_not_stop_the_checks_of_others(daemon, runtime, tmp_path):
    """The volume was moved to a disk that is not mounted."""
    for name in ("suite-db", "suite-api"):
        runtime.remove(name)
    shutil.rmtree(tmp_path / "volumes/db/rows")
    (tmp_path / "volumes/db/rows").symlink_to(tmp_path / "not mounted")
    daemon.check_components()
    assert (state(daemon, "db"), state(daemon, "api")) == (module.MISSING, module.RUNNING)


def test_components_beside_a_stuck_rollback_are_restarted(daemon, runtime):
    runtime.registry["registry/db:sick"] = "sick"
    image = daemon.journal.components()["db"].image

    def lose(verb, name):
        if (verb, name) == ("create", "suite-db"):
            runtime.images.pop(image, None)
            runtime.registry.pop("registry/db:1", None)
    runtime.before = lose
    with pytest.raises(Failed, match="The rollback is not finished"):
        daemon.deploy({"db": "sick"}, QUIET)
    runtime.before = lambda _verb, _name: None
    runtime.remove("suite-api")
    daemon.check_components()
    assert (state(daemon, "db"), state(daemon, "api")) == (module.MISSING, module.RUNNING)
    assert daemon.journal.unfinished()


@pytest.mark.parametrize(("part", "named"), [("data", "data of db"), ("secrets", "secrets of suite")])
def test_removal_that_fails_never_removes_what_a_later_deployment_uses(daemon, monkeypatch, tmp_path, part, named):
    def refuse(*_arguments):
        raise PermissionError(1, "Operation not permitted", "/the disk")
    with monkeypatch.context() as patch:
        patch.setattr(getattr(daemon, part), "remove", refuse)
        daemon.remove(part == "data", part == "secrets", QUIET)
        with pytest.raises(Refused, match=f"removal .*{named}.*Operation not permitted"):
            daemon.deploy({}, QUIET)
    daemon.deploy({}, QUIET)
    before = content(tmp_path / "volumes"), daemon.secrets.values(["db"])
    daemon.check_components()
    assert (content(tmp_path / "volumes"), daemon.secrets.values(["db"])) == before


def test_secret_files_readable_by_other_accounts_are_reported(tmp_path, runtime, caplog):
    for name, mode in (("open", 0o644), ("closed", 0o600)):
        (tmp_path / name).write_text("a secret")
        (tmp_path / name).chmod(mode)
    Daemon(Options(data_dir=str(tmp_path / "data"), secret_file=str(tmp_path / "open"),
                   key_file=str(tmp_path / "closed")), parse(TEXT, "toml"), runtime)
    assert [record.message for record in caplog.records if "can read" in record.message] == [
        f"secret_file: other accounts can read {tmp_path}/open, mode 0644. Restrict it: chmod 600 {tmp_path}/open"]
