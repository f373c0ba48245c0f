"""Commands for servers from boot to delete, with the output of python-novaclient."""

import csv
import io

import pytest
import yaml

from nova.conf import CONF
from tests.functional.cli.keystone import PROJECT

EMPTY = """\
+----+------+--------+------------+-------------+----------+
| ID | Name | Status | Task State | Power State | Networks |
+----+------+--------+------------+-------------+----------+
+----+------+--------+------------+-------------+----------+
"""


def test_list_without_servers_prints_a_table_without_rows(nova):
    assert nova("list").out == EMPTY
    assert nova("list", "-f", "json").document == []


def test_boot_show_and_delete_a_server(nova, project, flavor, image_id):
    booted = nova("boot", "--flavor", flavor, "--image", "tiny", "--nic", "none", "--meta", "a=b", "--poll", "web")
    assert "Server building..." in booted.err
    assert booted.err.endswith("Server building... 100% complete\nFinished\n")
    shown = dict(booted.rows)
    assert shown["status"] == "ACTIVE"
    assert shown["image"] == f"tiny ({image_id})"
    assert shown["metadata"] == '{"a": "b"}'
    assert shown["OS-EXT-STS:task_state"] == "-"
    assert [line.split("|")[1].strip() for line in booted.out.splitlines()[3:-1]] == sorted(shown)
    assert nova("list").rows == [[shown["id"], "web", "ACTIVE", "-", "Running", ""]]
    assert dict(nova("show", "web").rows)["id"] == shown["id"]
    assert nova("delete", "web").out == "Request to delete server web has been accepted.\n"
    project.wait_gone(shown["id"])
    assert nova("list", "-f", "json").document == []


def test_boot_with_min_count_returns_a_reservation_id(nova, flavor):
    requested = nova("boot", "--flavor", flavor, "--image", "tiny", "--nic", "none", "--min-count", 2,
                 "--return-reservation-id", "many", "-f", "json").document
    found = nova("list", "--reservation-id", requested["reservation_id"], "-f", "json").document
    assert [one["Name"] for one in found] == ["many-1", "many-2"]


@pytest.mark.parametrize(("words", "said"), [
    (("--image", "tiny"), "--flavor"),
    (("--flavor", "1"), "--image"),
    (("--flavor", "{flavor}", "--image", "tiny", "--nic", "none", "--nic", "auto"), "--nic none excludes"),
    (("--flavor", "{flavor}", "--image", "tiny", "--nic", "net=x"), "'net=x' is not KEY=VALUE with a key of net-id"),
    (("--flavor", "{flavor}", "--image", "tiny", "--block-device", "size=x"), "volume_size: 'x' is not a number"),
    (("--flavor", "{flavor}", "--image", "tiny", "--meta", "x"), "'x' is not KEY=VALUE"),
])
def test_invalid_boot_arguments_exit_with_usage_error(nova, flavor, words, said):
    ended = nova("boot", *(word.format(flavor=flavor) for word in words), "web", code=2)
    assert said in ended.err
    assert ended.out == ""


def test_json_and_yaml_output_keep_numbers_lists_and_null(nova, server):
    name, uuid = server
    shown = nova("show", name, "-f", "json").document
    assert shown["OS-EXT-STS:power_state"] == 1
    assert shown["OS-EXT-STS:task_state"] is None
    assert shown["tags"] == []
    assert yaml.safe_load(nova("show", uuid, "-f", "yaml").out) == shown
    listed = list(csv.DictReader(io.StringIO(nova("list", "-f", "csv").out)))
    assert listed == [{"ID": uuid, "Name": name, "Status": "ACTIVE", "Task State": "-", "Power State": "Running",
                       "Networks": ""}]
    assert nova("list", "-f", "value", "-c", "ID").out == f"{uuid}\n"


def test_server_list_filters_sorting_and_limit(nova, project, server, flavor, image_id):
    _, uuid = server
    other = project.boot(flavor, image_id, name="db", metadata={"x": "y"})
    project.wait(other, "ACTIVE")
    listed = nova("list", "--minimal")
    assert listed.rows == [[other, "db"], [uuid, "web"]]
    assert [row[1] for row in nova("list", "--sort", "display_name:desc").rows] == ["web", "db"]
    assert [row[0] for row in nova("list", "--name", "^w").rows] == [uuid]
    assert nova("list", "--status", "SHUTOFF").rows == []
    assert len(nova("list", "--limit", 1).rows) == 1
    assert len(nova("list", "--flavor", flavor, "--image", "tiny").rows) == 2
    assert nova("list", "--fields", "name,metadata").rows == [[other, "db", '{"x": "y"}'], [uuid, "web", "{}"]]
    assert "they have" in nova("list", "--fields", "colour", code=2).err
    everybody = nova("list", "--all-tenants", "-f", "json").document
    assert {one["Tenant ID"] for one in everybody} == {PROJECT}
    assert nova("list", "--tenant", "nobody", "-f", "json").document == []


def test_server_list_reads_all_pages(nova, project, server, flavor, image_id):
    project.boot(flavor, image_id, name="one", min_count=3)
    CONF.set_override("max_limit", 2, group="api")
    try:
        assert len(nova("list").rows) == 4
        assert len(nova("list", "--limit", 3).rows) == 3
    finally:
        CONF.clear_override("max_limit", group="api")


def test_stop_start_reboot_pause_and_suspend_commands(nova, server, settled):
    name, uuid = server
    assert nova("stop", name).out == "Request to stop server web has been accepted.\n"
    assert settled(uuid, "SHUTOFF")
    assert nova("list").rows[0][4] == "Shutdown"
    assert nova("start", name).out == "Request to start server web has been accepted.\n"
    settled(uuid, "ACTIVE")
    assert "Finished" in nova("reboot", "--hard", "--poll", name).err
    nova("pause", name)
    settled(uuid, "PAUSED")
    nova("unpause", name)
    settled(uuid, "ACTIVE")
    nova("suspend", name)
    settled(uuid, "SUSPENDED")
    nova("resume", name)
    settled(uuid, "ACTIVE")


def test_lock_and_unlock_commands(nova, server):
    name, _ = server
    nova("lock", "--reason", "keep", name)
    assert nova("show", name, "-f", "json").document["locked_reason"] == "keep"
    nova("unlock", name)
    assert nova("show", name, "-f", "json").document["locked"] is False


def test_command_in_the_wrong_server_state_fails_with_a_hint(nova, server, settled):
    name, uuid = server
    nova("pause", name)
    settled(uuid, "PAUSED")
    refused = nova("pause", name, code=1)
    assert "while it is in vm_state paused" in refused.err
    assert "HTTP 409" in refused.err
    assert "nova show SERVER" in refused.err


def test_stop_continues_after_an_unknown_server(nova, server, settled):
    name, uuid = server
    ended = nova("stop", "nothing", name, code=3)
    assert "There is no server with the name or id nothing" in ended.err
    assert ended.out == "Request to stop server web has been accepted.\n"
    settled(uuid, "SHUTOFF")


def test_ambiguous_server_name_fails_with_both_ids(nova, project, server, flavor, image_id):
    _, uuid = server
    other = project.boot(flavor, image_id, name="web")
    ended = nova("delete", "web", code=3)
    assert "There are 2 servers with the name web; use an id:" in ended.err
    assert uuid in ended.err
    assert other in ended.err
    project.wait(other, "ACTIVE")
    assert {one["ID"] for one in nova("list", "-f", "json").document} == {uuid, other}


def test_server_name_is_matched_literally(nova, project, server, flavor, image_id):
    odd = project.boot(flavor, image_id, name="w.b (1)")
    assert nova("show", "w.b (1)", "-f", "json").document["id"] == odd
    assert "There is no server" in nova("show", "w.b", code=3).err


def test_update_name_metadata_and_tags_of_a_server(nova, server):
    name, uuid = server
    nova("meta", name, "set", "a=1", "b=2")
    nova("meta", name, "delete", "a")
    nova("server-tag-set", name, "x")
    nova("server-tag-add", name, "y", "z")
    nova("server-tag-delete", name, "x")
    assert nova("server-tag-list", name).rows == [["y"], ["z"]]
    nova("update", name, "--name", "db", "--description", "new")
    shown = nova("show", "db", "-f", "json").document
    assert (shown["id"], shown["metadata"], shown["description"]) == (uuid, {"b": "2"}, "new")
    nova("update", "db", "--description", "")
    assert nova("show", "db", "-f", "json").document["description"] is None
    nova("server-tag-delete-all", "db")
    assert nova("server-tag-list", "db").rows == []
    assert "Nothing to change" in nova("update", "db", code=2).err


def test_diagnostics_topology_and_console_log_of_a_server(nova, server):
    name, _ = server
    assert nova("diagnostics", name, "-f", "json").document["driver"] == "fake"
    assert nova("server-topology", name, "-f", "json").document["nodes"] == []
    assert "booted" in nova("console-log", name).out
    assert nova("console-log", "--length", 1, name).out.count("\n") <= 2
    assert nova("list-secgroup", name).rows[0][1] == "default"


def test_reset_state_and_force_delete_commands(nova, server, settled, project):
    name, uuid = server
    assert "Reset state for server web succeeded" in nova("reset-state", name).out
    assert nova("list").rows[0][2] == "ERROR"
    nova("reset-state", "--active", name)
    settled(uuid, "ACTIVE")
    nova("force-delete", name)
    project.wait_gone(uuid)
