"""The table of commands: all commands can be loaded, have help and completion, and have a functional test."""

import ast
import shutil
import subprocess
import sys

import pytest

from nova.cli import shell
from nova.cli.commands import ALIASES, COMMANDS, PLATFORM, load
from nova.cli.main import main
from nova.cli.resources import completion
from tests.paths import ROOT

# Commands that must exist.
_ESSENTIAL = {
    "list", "boot", "show", "image-list", "flavor-list", "network-create", "console-log", "rebuild", "resize",
    "resize-confirm", "rescue", "live-migration", "host-evacuate", "volume-attach", "interface-attach", "usage",
    "service-list", "migration-list", "instance-action-list", "ssh", "watch", "explain", "top"}


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_command_has_help_and_usage(name):
    declared = load(name)
    assert declared.help.endswith(".")
    assert f"usage: nova {name}" in shell.parser_of(name, declared).format_help()


def test_essential_commands_exist():
    assert set(COMMANDS) >= _ESSENTIAL
    assert not set(ALIASES) & set(COMMANDS)


def test_commands_have_a_functional_test():
    """Functional tests call commands by nova(...) or run(...), or in a parametrized list."""
    tried = set()
    for path in (ROOT / "tests/functional/cli").glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("nova", "run")
            words = node.args if called else node.elts if isinstance(node, ast.List) else []
            tried |= {word.value for word in words if isinstance(word, ast.Constant)}
    assert set(COMMANDS) - tried == set()


def test_help_lists_all_commands(capsys):
    assert main(["help"]) == 0
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in COMMANDS)
    assert main([]) == 2


def test_unknown_command_suggests_similar_names(capsys):
    assert main(["lst"]) == 2
    assert "Did you mean list" in capsys.readouterr().err
    assert main(["server-group"]) == 2
    assert "server-group-create" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "check"),
                         [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "-n"])])
def test_completion_script_is_valid_for_the_shell(name, check):
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    subprocess.run(check, input=completion.script(name), text=True, check=True, timeout=60)


def test_bash_completes_commands_and_options():
    words = completion.script("bash") + """
complete_of() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _nova; echo "${COMPREPLY[@]}"; }
complete_of nova live-m
complete_of nova boot --fl
complete_of nova --debug rebo
complete_of nova help host-m
complete_of nova rollb
complete_of nova rollback --t
complete_of nova nodes a
complete_of nova backup restore --h
complete_of nova --addr=tcp://127.0.0.1:1 service-logs --no-f
complete_of nova update --c
"""
    ended = subprocess.run(["bash"], input=words, text=True, check=True, capture_output=True, timeout=60)
    assert ended.stdout.splitlines() == ["live-migration live-migration-abort live-migration-force-complete",
                                         "--flavor",
                                         "reboot", "host-meta",
                                         "rollback", "--to", "accept", "--help", "--no-follow", "--check"]


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_completion_contains_commands_of_both_services(name):
    text = completion.script(name)
    for command in (*COMMANDS, *PLATFORM):
        assert all(word in text for word in command.split()), command


# --- loaded modules ----------------------------------------------------------------------------------
_LISTING = """
from nova.cli import client, commands, main, output, progress, shell
shell.parser_of("list", commands.load("list"))
import keystoneauth1.session
"""
_LOGGING_IN = "import openstack.config"
_COUNT = "\nimport sys; print(len(sys.modules), *sorted(sys.modules))"


def loaded(script):
    """Return the modules loaded by a script."""
    ended = subprocess.run([sys.executable, "-W", "ignore", "-c", script + _COUNT], cwd=ROOT, capture_output=True,
                           text=True,
                           check=True, timeout=120)
    return set(ended.stdout.split()[1:])


def test_server_list_with_a_cached_token_loads_few_modules():
    """openstacksdk takes longer to load than all other modules together, and is only needed for the login."""
    listing, sdk = loaded(_LISTING), loaded(_LOGGING_IN)
    assert not {name.partition(".")[0] for name in listing} & {"openstack", "cmd2", "rich", "yaml", "oslo_config",
                                                               "msgspec"}
    assert {name for name in listing if name.startswith("nova.cli.resources.")} == {"nova.cli.resources.servers"}
    assert {name for name in listing if name.startswith("nova.") and not name.startswith("nova.cli")} == set()
    assert len(listing) < len(sdk) * 0.7


def test_only_update_is_a_command_of_servers_and_of_novad(capsys):
    assert set(COMMANDS) & set(PLATFORM) == {"update"}
    with pytest.raises(SystemExit) as ended:
        main(["update", "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert ("--hostname" in out, "--check" in out) == (True, True)
