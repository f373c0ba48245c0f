"""Tests of the configuration of novad."""

import os
import re
import tomllib

import msgspec
import pytest

from nova.cmd import novad
from nova.common.errors import Invalid
from nova.novad import platform
from nova.novad.options import EXAMPLE, Options, load
from tests.paths import ROOT


def written(tmp_path, text):
    (tmp_path / "novad.toml").write_text(text)
    return tmp_path / "novad.toml"


def test_example_configuration_lists_every_option_with_its_default():
    given = tomllib.loads(re.sub(r"^#(?=\w+ = )", "", EXAMPLE.read_text(), flags=re.MULTILINE))
    options = msgspec.convert(given, Options)
    assert set(given) == set(Options.__struct_fields__)
    examples = {"node", "secret_file", "tls_cert", "tls_key", "client_ca", "key_file", "podman_socket", "nodes",
                "nodes_ca", "node_address", "update_url", "update_key"}
    assert {name for name in given if getattr(options, name) != getattr(Options(), name)} == examples


def test_packaged_configuration_equals_the_printed_example(capsys):
    assert novad.main(["config"]) == 0
    assert capsys.readouterr().out == (ROOT / "etc/novad/novad.toml").read_text()
    assert load(ROOT / "etc/novad/novad.toml") == Options()


@pytest.mark.parametrize("name", sorted(
    {file.name for file in (ROOT / "etc/novad").iterdir() if file.suffix in (".toml", ".yaml")} - {"novad.toml"}))
def test_packaged_platform_files_are_valid(name):
    assert all(one.health for one in platform.load(ROOT / "etc/novad" / name).components.values())


@pytest.mark.parametrize(("text", "said"), [
    ('colour = "red"', "colour"), ('listen = "here"', "listen"), ("interval = 0", "interval"),
    ('listen = "tcp://127.0.0.1:70000"', "listen: 70000 is not a port"), ('data_dir = "here"', "data_dir"),
    ("keep_backups = 0", "keep_backups"), ("keep_days = -1", "keep_days"), ('roles = "control"', "roles"),
    ('tls_cert = "a"', "tls_cert and tls_key"), ('client_ca = "a"', "client_ca requires"), ("listen", "not valid TOML"),
])
def test_invalid_option_is_reported_by_name(tmp_path, text, said):
    with pytest.raises(Invalid, match=f"novad.toml.*{said}"):
        load(written(tmp_path, text))


@pytest.mark.parametrize("listen", ["0.0.0.0:1", "[::]:1", "192.0.2.1:1", "controller:1", "127.0.0.1.example.org:1"])
def test_listening_beyond_loopback_requires_tls(tmp_path, listen):
    with pytest.raises(Invalid, match=r"listen: .* is not on loopback"):
        load(written(tmp_path, f'listen = "tcp://{listen}"'))
    assert load(written(tmp_path, f'listen = "tcp://{listen}"\ntls_cert = "a"\ntls_key = "b"')).tls_key == "b"


def test_configuration_that_can_be_read_only_once_is_refused(tmp_path):
    """Check that novad does not start with default options because its launcher has read all of a pipe."""
    os.mkfifo(tmp_path / "novad.toml")
    with pytest.raises(Invalid, match=r"The configuration .*novad.toml cannot be read: not a regular file"):
        load(tmp_path / "novad.toml")


@pytest.mark.parametrize(("listen", "address"), [
    ("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:2", ("::1", 2)), ("localhost:3", ("localhost", 3))])
def test_listening_on_loopback_requires_no_tls(tmp_path, listen, address):
    assert load(written(tmp_path, f'listen = "tcp://{listen}"')).address == address


@pytest.mark.parametrize(("text", "said"), [
    ('nodes = ["10.0.0.2"]', "nodes"), ('nodes = ["tcp://127.0.0.1:1"]', "nodes: tcp://127.0.0.1:1: .*use tls:"),
    ('nodes = [{address = "tcp://10.0.0.2:1", node = "a", roles = ["b"]}]', "nodes: tcp://10.0.0.2:1: .*use tls:"),
    ('nodes = [{address = "tls://10.0.0.2:1", node = "a", roles = []}]', r"nodes\[0\].roles"),
    ('nodes = [{address = "tls://10.0.0.2:1", node = "../a", roles = ["b"]}]', r"nodes\[0\].node"),
    ('nodes = [{address = "tls://10.0.0.2:1", roles = ["b"]}]', r"nodes\[0\]"),
    ('nodes = ["tls://a:1", {address = "tls://a:1", node = "a", roles = ["b"]}]', "nodes: address: .*tls://a:1"),
    ('node = "a"\nnodes = [{address = "tls://b:1", node = "a", roles = ["b"]}]', "nodes: node: two nodes have a"),
    ('nodes = ["tcp://10.0.0.2:1"]', "nodes: tcp://10.0.0.2:1: .*use tls:"),
    ('nodes = ["tls://10.0.0.2:1"]\nplatform = ""', "platform: a control node"),
    ('nodes = ["tls://10.0.0.2:1"]\nlisten = "tcp://0.0.0.0:1"\ntls_cert = "a"\ntls_key = "b"', "node_address"),
    ('nodes = ["tls://0.0.0.0:1"]', "nodes: tls://0.0.0.0:1: not the address"),
    ('nodes = ["tls://[::]:1"]', "nodes: tls://.*: not the address"),
    ('node_address = "0.0.0.0"', "node_address: other nodes cannot"), ('node_address = "::"', "node_address: other"),
    ("discover_nodes = true", "discover_nodes: requires nodes_ca"),
    ('discover_nodes = true\nplatform = ""', "platform: a control node"), ('announce = "eth0"', "announce")])
def test_invalid_options_for_other_nodes_are_refused(tmp_path, text, said):
    with pytest.raises(Invalid, match=f"novad.toml: {said}|novad.toml.*`{said}"):
        load(written(tmp_path, text))
