"""Commands for flavors, key pairs, server groups, quotas and usage."""

import pytest

from tests.functional.cli.keystone import PROJECT

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIEe0h9YaB0pSB0WTDz0jJX+J8D6xVn5Vw1tzk2sFzw7q me@here"


def test_flavor_commands(nova):
    made = nova("flavor-create", "--is-public", "false", "--description", "new", "small", "auto", 256, 1, 2).rows[0]
    uuid = made[0]
    assert made[1:] == ["small", "256", "1", "0", "0", "2", "False", "new"]
    assert uuid not in nova("flavor-list").out
    assert uuid in nova("flavor-list", "--all").out
    nova("flavor-key", "small", "set", "hw:cpu_policy=dedicated", "a:b=c")
    nova("flavor-key", "small", "unset", "a:b")
    assert nova("flavor-show", "small", "-f", "json").document["extra_specs"] == {"hw:cpu_policy": "dedicated"}
    assert "hw:cpu_policy" in nova("flavor-list", "--all", "--extra-specs").out
    assert nova("flavor-access-add", "small", "other").rows == [[uuid, "other"]]
    assert nova("flavor-access-list", "--flavor", uuid).rows == [[uuid, "other"]]
    assert nova("flavor-access-remove", "small", "other").rows == []
    assert nova("flavor-update", "small", "").rows[0][-1] == "-"
    nova("flavor-delete", "small")
    assert "There is no flavor with the name or id small" in nova("flavor-show", "small", code=3).err


def test_flavor_access_list_of_a_public_flavor_fails(nova, flavor):
    assert "is public" in nova("flavor-access-list", "--flavor", flavor, code=1).err


def test_flavor_rxtx_factor_is_available_until_2_101(nova, flavor):
    shown = nova("--os-compute-api-version", "2.101", "flavor-list").out
    assert "RXTX_Factor" in shown
    made = nova("--os-compute-api-version", "2.101", "flavor-create", "--rxtx-factor", 2, "f", "rx", 1, 1, 1).rows[0]
    assert made[7] == "2.0"
    nova("flavor-delete", "rx")
    assert "2.101" in nova("flavor-create", "--rxtx-factor", 2, "f", "rx", 1, 1, 1, code=2).err


def test_keypair_commands(nova, tmp_path):
    (tmp_path / "id.pub").write_text(KEY)
    nova("keypair-add", "--pub-key", tmp_path / "id.pub", "mine")
    (name, kind, fingerprint), = nova("keypair-list").rows
    assert (name, kind) == ("mine", "ssh")
    assert nova("keypair-show", "mine", "-f", "json").document["fingerprint"] == fingerprint
    assert nova("keypair-list", "--limit", 0).rows == []
    nova("keypair-delete", "mine")
    assert nova("keypair-list").rows == []


def test_keypair_add_without_a_public_key_suggests_ssh_keygen(nova):
    assert "ssh-keygen" in nova("keypair-add", "mine", code=2).err
    assert "PRIVATE KEY" in nova("--os-compute-api-version", "2.91", "keypair-add", "mine").out
    nova("keypair-delete", "mine")
    assert "Cannot read the public key" in nova("keypair-add", "--pub-key", "/nothing", "mine", code=1).err


def test_server_group_commands(nova):
    made = nova("server-group-create", "--rule", "max_server_per_host=2", "apart", "anti-affinity")
    uuid = made.rows[0][0]
    assert made.rows[0][1:] == ["apart", PROJECT, "admin", "anti-affinity", '{"max_server_per_host": 2}', "[]"]
    assert nova("server-group-get", "apart").rows == made.rows
    assert made.rows[0] in nova("server-group-list", "--all-projects").rows
    old = nova("--os-compute-api-version", "2.12", "server-group-list", "-f", "json").document
    assert old == [{"Id": uuid, "Name": "apart", "Policies": ["anti-affinity"], "Members": [], "Metadata": {}}]
    assert nova("server-group-delete", "apart").out == "Server group apart has been successfully deleted.\n"


def test_quota_commands(nova):
    nova("quota-update", "--cores", 7, "--force", "someone")
    assert ["cores", "7"] in nova("quota-show", "--tenant", "someone").rows
    assert {"Quota": "cores", "Limit": {"in_use": 0, "limit": 7, "reserved": 0}} in nova(
        "quota-show", "--tenant", "someone", "--detail", "-f", "json").document
    nova("quota-delete", "--tenant", "someone")
    assert nova("quota-show", "--tenant", "someone").rows == nova("quota-defaults", "--tenant", "someone").rows
    assert "Nothing to change" in nova("quota-update", "someone", code=2).err


def test_quota_class_and_limits_commands(nova):
    before = {row["Quota"]: row["Limit"] for row in nova("quota-class-show", "default", "-f", "json").document}
    nova("quota-class-update", "default", "--server-groups", 9)
    try:
        limits = {row["Name"]: row for row in nova("limits", "-f", "json").document}
        assert limits["ServerGroups"] == {"Name": "ServerGroups", "Used": 0, "Max": 9}
        assert limits["Keypairs"]["Used"] is None
    finally:
        nova("quota-class-update", "default", "--server-groups", before["server_groups"])


def test_usage_commands(nova, server):
    shown = nova("usage")
    assert int(shown.rows[0][0]) >= 1
    assert shown.err.startswith("Usage from ")
    assert PROJECT in [row[0] for row in nova("usage-list").rows]
    assert nova("usage", "--tenant", "nobody").rows == []
    assert "is not a date" in nova("usage", "--start", "soon", code=2).err
    assert nova("instance-usage-audit-log", "-f", "json").document["hosts_not_run"] == []
    assert nova("instance-usage-audit-log", "--before", "2026-01-20 00:00:00", "-f", "json").document["log"] == {}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_contain_commands_and_options(nova, shell):
    script = nova("completion", shell).out
    for word in ("live-migration-abort", "availability-zone"):
        assert word in script


def test_version_list_shows_the_used_microversion(nova):
    shown = nova("version-list")
    assert shown.rows[-1] == ["v2.1", "CURRENT", "2013-07-23T11:33:21Z", "2.1", "2.104"]
    assert "uses 2.104" in shown.err
