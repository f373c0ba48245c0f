"""Programs with common operator mistakes: an error line and an exit code, never a traceback."""

import os
import subprocess
import sys

import pytest

from tests.paths import ROOT

COMMANDS = (("service", "list"), ("service", "delete", "x"), ("network", "list"), ("network", "delete", "x"),
            ("schedule", "explain", "--flavor", "1"), ("audit",), ("volume", "list"))


def start(program, *arguments, **environment):
    """Run a program and return the completed process. ``environment`` is added to PATH."""
    command = (f"import sys; sys.argv[0] = {program!r}; from nova.cmd.{program.removeprefix('nova-')} import main; "
               "sys.exit(main())")
    return subprocess.run([sys.executable, "-c", command, *arguments], cwd=ROOT, capture_output=True, text=True,
                          timeout=120, check=False, env={"PATH": os.environ["PATH"], **environment})


@pytest.fixture
def config(tmp_path):
    """Write a configuration whose database does not exist."""
    file = tmp_path / "nova.conf"
    file.write_text(f"[DEFAULT]\nstate_path = {tmp_path}\ntransport_url = kombu+memory://\nrpc_response_timeout = 1\n")
    return file


def test_nova_manage_commands_without_a_database_fail_with_a_hint(config, tmp_path):
    script = (f"import sys; from nova.cmd.manage import main; sys.argv[0] = 'nova-manage'\n"
              f"for arguments in {COMMANDS!r}: print(main(arguments), *arguments)")
    ended = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
                           check=False, env={"PATH": os.environ["PATH"], "NOVA_CONFIG": str(config)})
    assert ended.stdout.splitlines() == [" ".join(("4", *arguments)) for arguments in COMMANDS]
    line = (f"nova-manage: The database sqlite:///{tmp_path}/nova.sqlite cannot be used: the file does not exist: run "
            "nova-manage db sync")
    assert ended.stderr.splitlines() == [line] * len(COMMANDS)


def test_nova_manage_db_sync_uses_the_nova_config_variable(config, tmp_path):
    assert start("nova-manage", "db", "version", NOVA_CONFIG=str(config)).stdout == "empty\n"
    ended = start("nova-manage", "db", "sync", NOVA_CONFIG=str(config))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (tmp_path / "nova.sqlite").exists()
    assert start("nova-manage", "network", "list", "--config-file", str(config)).returncode == 2
    assert start("nova-manage", "--config-file", str(config), "network", "list").returncode == 0


def test_later_files_of_nova_config_override_earlier_files(config, tmp_path):
    more = tmp_path / "more.conf"
    more.write_text(f"[database]\nconnection = sqlite:///{tmp_path}/other.sqlite\n")
    ended = start("nova-manage", "audit", NOVA_CONFIG=f"{config}:{more}")
    assert f"sqlite:///{tmp_path}/other.sqlite" in ended.stderr


def test_upgrade_check_without_a_database_fails(config):
    ended = start("nova-status", "upgrade", "check", NOVA_CONFIG=str(config))
    assert ended.returncode == 2
    assert "the file does not exist" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_conductor_without_a_database_exits_with_a_hint(config):
    ended = start("nova-conductor", "--config-file", str(config))
    assert ended.returncode == 1
    assert "cannot be used: the file does not exist: run nova-manage db sync" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("program", ["nova-manage", "nova-status", "nova-conductor", "nova-api"])
def test_unreadable_configuration_file_is_reported_in_a_single_line(tmp_path, program):
    missing = tmp_path / "missing.conf"
    arguments = {"nova-manage": ["audit"], "nova-status": ["upgrade", "check"]}.get(program, [])
    ended = start(program, *arguments, NOVA_CONFIG=str(missing))
    assert ended.returncode == 1
    assert ended.stderr.startswith(f"{program}: ")
    assert str(missing) in ended.stderr
    assert ended.stderr.count("\n") == 1
