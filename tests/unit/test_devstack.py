"""Scripts of devstack, tested without a cloud."""

import ast
import importlib.util
import stat
import subprocess
import time
import types

import pytest

from tests.paths import ROOT

LIBRARY = ROOT / "devstack" / "lib" / "supervisor.sh"

# Exits after all three services were requested to stop; fails after a timeout.
_STOPS = """#!/bin/sh
touch "$DATA_DIR/$4"
for _ in $(seq 300); do
    [ "$(ls "$DATA_DIR" | grep -c nova-)" = 3 ] && { echo "$4" >> "$DATA_DIR/stopped"; exit 0; }
    sleep 0.1
done
exit 1
"""


def test_stop_services_stops_services_in_parallel_and_waits(tmp_path):
    supervisorctl = tmp_path / "bin" / "supervisorctl"
    supervisorctl.parent.mkdir()
    supervisorctl.write_text(_STOPS)
    supervisorctl.chmod(supervisorctl.stat().st_mode | stat.S_IXUSR)
    data = tmp_path / "data"
    data.mkdir()
    subprocess.run(["bash", "-euc", f". {LIBRARY}; stop_services nova-api nova-compute nova-conductor"], check=True,
                   env={"VENV": str(tmp_path), "DATA_DIR": str(data), "PATH": "/usr/bin:/bin"}, timeout=120)
    assert sorted((data / "stopped").read_text().split()) == ["nova-api", "nova-compute", "nova-conductor"]


# --- passwords ---------------------------------------------------------------------------------------
_RECORDING_PROGRAM = """#!/bin/sh
tr '\\0' ' ' < /proc/$$/cmdline >> "$RECORD"
echo >> "$RECORD"
env >> "$RECORD.env"
"""
_SCRIPT = """
for file in common database rabbitmq keystone; do . "$LIBRARY/$file.sh"; done
DATABASES=; RABBIT_URL=rabbit://nova:$RABBIT_PASSWORD@127.0.0.1:1/nova
rabbit_definitions; rabbit_responds; queue_has_consumer conductor; mysql_responds; sync_keystone; create_accounts
"""
_SECRETS = {"RABBIT_PASSWORD": "s-rabbit", "DATABASE_PASSWORD": "s-database", "ADMIN_PASSWORD": "s-admin",
            "SERVICE_PASSWORD": "s-service", "DEMO_PASSWORD": "s-demo"}


def test_devstack_passes_no_password_in_program_arguments(tmp_path):
    """Pass passwords in the environment or on standard input, because all local users can read arguments."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / "logs" / "stack").mkdir(parents=True)
    for name in ("python", "keystone-manage", "env"):
        (programs / name).write_text(_RECORDING_PROGRAM.replace("env >>", "/usr/bin/env >>"))
        (programs / name).chmod(0o755)
    record = tmp_path / "record"
    subprocess.run(["bash", "-euc", _SCRIPT], check=True, timeout=120, env={
        **_SECRETS, "PATH": f"{programs}:/usr/bin:/bin", "LIBRARY": str(LIBRARY.parent), "VENV": str(tmp_path),
        "DATA_DIR": str(tmp_path), "DEVSTACK_DIR": str(LIBRARY.parents[1]), "RECORD": str(record),
        "NOVA_DATABASE": "mysql", "MYSQL_PORT": "1", "REGION_NAME": "r", "KEYSTONE_URL": "http://k",
        "GLANCE_URL": "http://g", "NOVA_URL": "http://n", "RABBIT_PORT": "1"})
    arguments, environment = record.read_text(), record.with_suffix(".env").read_text()
    assert len(arguments.splitlines()) == 10  # four calls of keystone-manage, six of Python
    assert not [secret for secret in _SECRETS.values() if secret in arguments]
    assert "OS_BOOTSTRAP_PASSWORD=s-admin" in environment
    assert "URL=amqp://nova:s-rabbit@" in environment
    assert "URL=mysql+pymysql://nova:s-database@" in environment
    assert "OS_PASSWORD=s-admin" in environment


def test_devstack_service_accounts_have_the_service_role_only():
    tree = ast.parse((LIBRARY.parent / "accounts.py").read_text())
    [roles] = [ast.literal_eval(node.value) for node in tree.body
               if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "ROLES"]
    assert roles
    assert {name for names in roles.values() for name in names} == {"service"}


# --- the first server --------------------------------------------------------------------------------
_CONSOLE = "=== nova guest ready: hostname={} ip=10.0.0.2 ip6=none source={} up=8.16s ===\n\n{} login: "


def check_console(name, source):
    """Check a server with the given hostname and metadata source like stack.sh does."""
    spec = importlib.util.spec_from_file_location("devstack_cloud", LIBRARY.parent / "cloud.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    output = _CONSOLE.format(name, source, name)
    cloud = types.SimpleNamespace(compute=types.SimpleNamespace(
        get_server_console_output=lambda _ident: {"output": output}))
    module.wait_prompt(cloud, types.SimpleNamespace(id="1", name="first"), time.monotonic())


def test_devstack_check_fails_for_a_server_without_metadata():
    check_console("first", "metadata-service")
    check_console("first", "config-drive")
    with pytest.raises(SystemExit, match="first received no metadata"):
        check_console("nova-guest", "none")
