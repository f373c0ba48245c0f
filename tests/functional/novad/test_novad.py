"""All novad commands, as users enter them."""

import contextlib
import io
import json
import queue
import re
import sys
import threading
import time
import traceback

import grpc
import pytest

from nova.common.errors import Refused
from nova.novad import server as module
from nova.novad.api import novad_pb2 as pb
from nova.novad.client import Client
from nova.novad.daemon import Daemon
from nova.novad.server import Server
from tests.functional.client import wait_for
from tests.unit.novad.platforms import parse
from tests.unit.novad.test_deploy import TEXT
from tests.unit.novad.test_masking import SHOWN, longest

VERBS = [("deploy",), ("plan",), ("history",), ("rollback",), ("restart",), ("remove", "--yes"), ("platform-info",),
         ("service-info", "db"), ("service-logs", "db", "--no-follow"), ("info",), ("health",), ("backup", "list"),
         ("backup", "create"), ("backup", "restore", "1"), ("backup", "prune"), ("secrets", "list"),
         ("secrets", "rotate", "db"), ("update",), ("update", "--check"), ("nodes", "list"), ("nodes", "forget", "n2"),
         ("nodes", "accept", "n2"), ("nodes", "secret", "n2")]


def column(ended, name, key="Component"):
    """Return {component: value of this column} from a table."""
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in ended.out.splitlines()
             if line.startswith("|")]
    return {row[lines[0].index(key)]: row[lines[0].index(name)] for row in lines[1:]}


@pytest.mark.parametrize("secret", ["wrong", ""])
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
def test_commands_without_the_shared_secret_are_refused(node, verb, secret, monkeypatch):
    node.patch.setenv("NOVA_SHARED_SECRET", secret)
    monkeypatch.setattr("nova.novad.client._SECRET_FILE", node.data_dir / "nothing")
    ended = node.nova(*verb, code=4)
    why = "does not prove that it knows the shared secret" if secret else "The shared secret is missing"
    assert (why in ended.err, ended.out) == (True, "")
    assert (node.runtime.made, node.daemon.journal.deployments()) == ({}, [])


def test_deploy_shows_progress_and_platform_info(node):
    out = node.nova("deploy").out
    assert re.search(r"\[ +\d+\.\d\] db: starting registry/db:1\n", out)
    assert "deployment 1 is done: db, conductor, api" in out
    assert column(node.nova("platform-info", "-f", "table"), "Version") == {
        "db": "1 of the program", "conductor": "1 of the program", "api": "1"}
    assert set(column(node.nova("health"), "State").values()) == {"running"}
    assert column(node.nova("plan", "db=2"), "Action") == {"db": "replace"}
    assert "there was nothing to do" in node.nova("deploy").out
    info = node.nova("info").out
    assert all(word in info for word in ("n1", "fake 1", "suite", "control, compute"))


def test_service_info_masks_secrets(node):
    node.nova("deploy")
    found = json.loads(node.nova("service-info", "conductor").out)
    assert (found["env"], found["image"]) == ({"URL": "********"}, "registry/conductor:1")
    assert found["volumes"] == [{"type": "file", "name": "", "destination": "/etc/conductor.conf", "options": ["ro"]}]
    assert node.nova("service-logs", "db", "--no-follow").out == "a line\n"
    assert "Component dbb does not exist" in node.nova("service-info", "dbb", code=3).err
    assert "dbb is not deployed" in node.nova("service-logs", "dbb", code=3).err


def test_failed_upgrade_is_rolled_back_and_rollback_command_works(node):
    node.nova("deploy")
    node.nova("deploy", "db=2")
    failed = node.nova("deploy", "db=3", "conductor=sick", code=1)
    assert "conductor does not become healthy" in failed.err
    assert column(node.nova("history"), "State", key="ID") == {"1": "done", "2": "done", "3": "undone"}
    assert column(node.nova("platform-info", "-f", "table"), "Image")["db"] == "registry/db:2"
    node.nova("rollback", "db")
    assert column(node.nova("platform-info", "-f", "table"), "Image")["db"] == "registry/db:1"
    assert "Nothing to roll back to" in node.nova("rollback", "api", code=1).err


def test_errors_are_reported_with_their_exit_codes(node):
    assert "Component dbb does not exist" in node.nova("deploy", "dbb", code=3).err
    assert "'a b' is not a version" in node.nova("deploy", "db=a b", code=2).err
    assert "registry/db:9 cannot be fetched" in node.nova("deploy", "db=9", code=1).err
    assert "Secret none does not exist" in node.nova("secrets", "rotate", "none", code=3).err
    assert "is not deployed" in node.nova("restart", "db", code=3).err
    node.runtime.away = True
    assert "no response" in node.nova("deploy", code=1).err
    node.runtime.away = False
    node.nova("deploy")
    node.runtime.away = True
    by_novad = node.nova("restart", "db", code=4).err
    assert ("no response" in by_novad, "is novad serve running" in by_novad) == (True, False)
    node.runtime.away = False
    node.server.stop()
    assert "is novad serve running there?" in node.nova("info", code=4).err
    assert "not an address" in node.nova("--addr", "here", "info", code=2).err
    assert "use tls://192.0.2.1:1: without TLS" in node.nova("--addr", "tcp://192.0.2.1:1", "info", code=2).err


def test_backups_are_created_listed_restored_and_pruned(node):
    node.nova("deploy")
    node.nova("backup", "create")
    assert column(node.nova("backup", "list"), "Version") == {"db": "1 of the program"}
    assert column(node.nova("backup", "list", "api"), "Version") == {}
    assert "deployment 3 is done: db" in node.nova("backup", "restore", 1).out
    assert "Backup 99 does not exist" in node.nova("backup", "restore", 99, code=3).err
    assert column(node.nova("backup", "prune"), "Version") == {}


def test_restart_follows_the_dependency_order(node):
    node.nova("deploy")
    lines = re.findall(r"\] (\w+): (stopping|starting)", node.nova("restart", "db", "conductor").out)
    assert lines == [("conductor", "stopping"), ("db", "stopping"), ("db", "starting"), ("conductor", "starting")]


def test_remove_requires_confirmation(node, monkeypatch):
    node.nova("deploy")
    for answer in ("", "n\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(answer))
        ended = node.nova("remove", "--remove-volumes", code=1)
        assert ("and their data? [y/N]" in ended.err, "Nothing was removed" in ended.err) == (True, True)
        assert len(node.runtime.running) == 3
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    node.nova("remove")
    assert (node.runtime.made, column(node.nova("platform-info", "-f", "table"), "State")) == ({}, {})


def test_secrets_are_absent_from_output_logs_and_journal(node, caplog):
    everything = node.nova("deploy").out
    values = [node.daemon.secrets.values(["db"])["db"]]
    node.runtime.said["suite-conductor"] = [f"cannot log in with {values[0]}"]
    for verb in VERBS[1:]:
        if verb[0] not in ("remove", "rollback", "update", "nodes"):
            ended = node.nova(*verb)
            everything += ended.out + ended.err
    values.append(node.daemon.secrets.values(["db"])["db"])
    node.runtime.said["suite-conductor"] = [f"cannot log in with {values[1]}"]
    everything += node.nova("deploy", "conductor=bad", code=1).err
    everything += node.nova("service-logs", "conductor", "--no-follow").out + node.nova("history").out
    assert "cannot log in with ********" in everything
    assert values[0] != values[1]
    everything += caplog.text + node.secret.join(str(path.read_bytes())
                                                 for path in node.data_dir.glob("journal*"))
    assert not [value for value in values if value in everything]
    assert node.secret not in caplog.text


def held(node):
    """Block a deployment until the event is set."""
    reached, go_on = threading.Event(), threading.Event()

    def wait(verb, name):
        if (verb, name) == ("create", "suite-conductor"):
            reached.set()
            assert go_on.wait(30)
    node.runtime.before = wait
    return reached, go_on


def test_deployment_continues_without_its_client_and_blocks_a_second(node):
    reached, go_on = held(node)
    client = Client()
    stream = client.follow(client.platform.Deploy, pb.DeployRequest())
    next(stream)
    assert reached.wait(30)
    assert "Another deployment is in progress (deploy)" in node.nova("deploy", "api=2", code=1).err
    stream.close()
    client.close()
    go_on.set()
    wait_for(lambda: column(node.nova("history"), "State", key="ID") == {"1": "done"}, 30)
    assert set(column(node.nova("health"), "State").values()) == {"running"}


@pytest.mark.parametrize("follow", [False, True])
def test_secret_split_across_log_lines_is_masked(node, follow):
    node.nova("deploy")
    value = node.daemon.secrets.values(["db"])["db"]
    with contextlib.closing(Client()) as client:
        for cut in range(1, len(value)):
            node.runtime.said["suite-db"] = [(1, f"x{value[:cut]}".encode()), (2, b"between"),
                                             (1, f"{value[cut:]}x".encode()), "the last line"]
            stream = client.follow(client.logs.Read, pb.LogsRequest(name="db", follow=follow))
            text = ""
            while not text.endswith("the last line\n"):
                text += next(stream).text + "\n"
            stream.close()
            assert longest(text.replace("between\n", ""), value) <= SHOWN, cut
            assert "********x" in text


class FedLines:
    """A log whose batches arrive from a queue."""

    def __init__(self):
        self.queue = queue.SimpleQueue()

    def batches(self):
        return iter(self.queue.get, None)

    def close(self):
        self.queue.put(None)


@pytest.mark.parametrize("secrets", ["none before", "rotated"])
def test_secret_that_is_created_or_rotated_while_a_log_is_followed_is_masked(serve, monkeypatch, secrets):
    text = TEXT if secrets == "rotated" else TEXT.replace("${secret:db}", "none")
    node, lines = serve(text), FedLines()
    node.nova("deploy")
    old = node.daemon.secrets.values(node.daemon.secrets.names()).get("db", "no secret yet")
    monkeypatch.setattr(node.runtime, "logs", lambda *_arguments: lines)
    with contextlib.closing(Client()) as client:
        stream = client.follow(client.logs.Read, pb.LogsRequest(name="db", follow=True))
        lines.queue.put([(1, b"before")])
        assert next(stream).text == "before"
        if secrets == "rotated":
            node.nova("secrets", "rotate", "db")
        else:
            node.daemon.deployer.platform = parse(TEXT, "toml")
            node.nova("deploy")
        new = node.daemon.secrets.values(["db"])["db"]
        assert new != old
        shown = []
        for batch in ([(1, f"set {new[:6]}".encode())], [(1, f"{new[6:]}.".encode())], [(1, f"now {new}".encode())],
                      [(1, f"was {old}".encode())]):
            lines.queue.put(batch)
            shown.append(next(stream).text)
        assert shown[1:] == ["********.", "now ********", "was ********" if secrets == "rotated" else f"was {old}"]
        assert longest("\n".join(shown), new) <= SHOWN
        stream.close()
    assert "********" in node.daemon.secrets.masker().text(new)


@pytest.mark.parametrize("words", [("rollback", "--to"), ("backup", "restore"), ("history", "--limit"),
                                   ("service-logs", "db", "--no-follow", "--tail")])
@pytest.mark.parametrize("number", ["0", "-1", "2147483648", "9" * 25, "9" * 5000, "x", "1.5", "\u0661"])
def test_numbers_outside_of_their_range_are_usage_errors(node, words, number):
    """Check that a rollback to deployment 0 is not a rollback to the previous one."""
    node.nova("deploy")
    before = node.daemon.journal.deployments()
    assert f"{number[:50]}" in node.nova(*words, number, code=2).err
    assert node.daemon.journal.deployments() == before


@pytest.mark.parametrize("verb", ["deploy", "plan"])
def test_component_with_two_versions_is_a_usage_error(node, verb):
    assert "db is named twice" in node.nova(verb, "db=1", "api", "db=2", code=2).err


@pytest.mark.parametrize("tail", ["1000000", "10001"])
def test_log_tail_outside_of_its_range_is_refused_and_named(node, tail):
    node.nova("deploy")
    refused = node.nova("service-logs", "db", "--tail", tail, code=2).err
    assert f"tail: {tail} is not a number of lines from 0 (the default, 100) to 10000." in refused
    assert node.nova("service-logs", "db", "--no-follow", "--tail", "10000").out == "a line\n"


def test_disconnected_log_readers_release_their_threads(node):
    node.nova("deploy")
    for _round in range(module._READERS + 8):
        client = Client()
        stream = client.follow(client.logs.Read, pb.LogsRequest(name="db", follow=True, tail=1))
        assert next(stream).text == "a line"
        stream.close()
        client.close()
        time.sleep(0.05)
    assert node.nova("service-logs", "db", "--no-follow").out == "a line\n"


def test_excess_log_readers_are_refused(node):
    node.nova("deploy")
    client = Client()
    streams = [client.follow(client.logs.Read, pb.LogsRequest(name="db", follow=True)) for _n in range(module._READERS)]
    assert {next(stream).text for stream in streams} == {"a line"}
    assert "already reading logs" in node.nova("service-logs", "db", code=1).err
    assert node.nova("info").code == 0
    for stream in streams:
        stream.close()
    client.close()


def test_health_check_requires_no_secret(node):
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    with grpc.insecure_channel(f"127.0.0.1:{node.server.port}") as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=10)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_listen_address_in_use_is_refused(node):
    daemon = node.daemon
    other = Daemon.__new__(Daemon)
    other.__dict__.update(daemon.__dict__)
    with pytest.raises(Refused, match="is in use"):
        Server(other)


def test_novad_stop_during_a_deployment_leaves_no_threads(node):
    reached, go_on = held(node)
    client = Client()
    stream = client.follow(client.platform.Deploy, pb.DeployRequest())
    next(stream)
    assert reached.wait(30)
    node.server.stop()
    wait_for(lambda: all(not pending.startswith("grpc_") or quiet for pending, quiet in waiting()), 20)
    go_on.set()
    client.close()


def waiting():
    """Return the name of each thread, and True if it waits for work."""
    frames = sys._current_frames()
    return [(thread.name, "_followed" not in "".join(traceback.format_stack(frames[thread.ident])))
            for thread in threading.enumerate() if thread.ident in frames]
