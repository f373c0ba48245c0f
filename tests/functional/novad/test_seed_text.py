"""The examples of novad's requirements document, compared with what the commands print.

The document was stored without indentation and blank lines, so both sides are compared without them. The registry's
host name is replaced by example.org.
"""

import contextlib
import json
import re

import pytest

import nova
from nova.cmd import novad
from nova.novad.deployment import containers
from tests.functional.cli.conftest import run

NOVA_HELP = """\
NAME:
nova - Axyon Systems Control Manager
USAGE:
nova [global options] command [command options]
AUTHOR:
Axyon Project
COMMANDS:
discover Discover Axyon Nova Services
deploy deploy platform
platform-info show current platform info
service-info show service info
service-logs stream service logs
restart restart platform services (default: all)
remove remove all components of the platform
info show app info
update update the application
help, h Shows a list of commands or help for one command
GLOBAL OPTIONS:
--debug, -D enable debug logging (default: false)
--addr value, -a value nova grpc server address (default: "tcp://127.0.0.1:18080") [$NOVA_ADDR]
--secret value nova shared authentication secret [$NOVA_SHARED_SECRET]
--help, -h show help
--version, -v print the version
"""
NOVAD_HELP = """\
NAME:
nova - Axyon Systems Control Manager (daemon)
USAGE:
nova [global options] command [command options]
AUTHOR:
Axyon Project
COMMANDS:
serve start nova server
config
help, h Shows a list of commands or help for one command
GLOBAL OPTIONS:
--debug, -D enable debug logging (default: false)
--help, -h show help
--version, -v print the version
"""
PLATFORM_INFO = """\
Services
- Name: arkeia-db
Version: postgres (PostgreSQL) 17.3
- Name: arkeia
Version: 2025.02.22 (c289f33)
- Name: orion-db
Version: postgres (PostgreSQL) 17.3
- Name: orion
Version: 2025.03.17 (9899f33)
- Name: fusion
Version: 2025.03.18 (2f7ce79)
"""
SERVICE_INFO = """\
{
"name": "fusion",
"image": "registry.example.org/axyon-io/fusion:stable",
"volumes": [
{
"type": "bind",
"name": "fusion",
"destination": "/data",
"options": [
"rw",
"rbind"
]
}
],
"env": {
"FUSION_CERT_DIR": "/data/certs",
"FUSION_ENABLE_DISCOVERY": "true",
"FUSION_LISTEN_ADDRESS": ":10080"
},
"cmd": [
"fusion"
],
"versionCmd": [
"/bin/fusion",
"--version"
]
}
"""
SERVICE_LOGS = """\
time="2025-03-19T14:57:39Z" level=info msg="registered service" type=orion.services.registration.v1
time="2025-03-19T14:57:39Z" level=debug msg="waiting for services start"
time="2025-03-19T14:57:39Z" level=debug msg="starting service orion.services.compute.v1"
time="2025-03-19T14:57:39Z" level=info msg="service started: orion.services.compute.v1"
time="2025-03-19T14:57:39Z" level=debug msg="starting service orion.services.info.v1"
time="2025-03-19T14:57:39Z" level=debug msg="starting service orion.services.cluster.v1"
time="2025-03-19T14:57:39Z" level=info msg="service started: orion.services.cluster.v1"
time="2025-03-19T14:57:39Z" level=debug msg="starting service orion.services.auth.v1"
time="2025-03-19T14:57:39Z" level=info msg="service started: orion.services.auth.v1"
time="2025-03-19T14:57:39Z" level=debug msg="starting expirer"
"""
VERSIONS = dict(re.findall(r"Name: (.*)\nVersion: (.*)", PLATFORM_INFO))
PLATFORM = """\
name = "axyon"
[components.arkeia-db]
image = "registry.example.org/axyon-io/postgres"
version_command = ["version", "arkeia-db"]
[components.arkeia]
image = "registry.example.org/axyon-io/arkeia"
depends = ["arkeia-db"]
version_command = ["version", "arkeia"]
[components.orion-db]
image = "registry.example.org/axyon-io/postgres"
version_command = ["version", "orion-db"]
[components.orion]
image = "registry.example.org/axyon-io/orion"
depends = ["orion-db"]
version_command = ["version", "orion"]
[components.fusion]
image = "registry.example.org/axyon-io/fusion"
env = {FUSION_LISTEN_ADDRESS = ":10080", FUSION_CERT_DIR = "/data/certs", FUSION_ENABLE_DISCOVERY = "true"}
command = ["fusion"]
volumes = [{name = "fusion", destination = "/data"}]
version_command = ["/bin/fusion", "--version"]
"""


def flat(text):
    """Return the text in the form of the document: no indentation, no blank lines, single spaces between columns."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.fixture
def axyon(serve, monkeypatch):
    """A node that runs the platform of the document."""
    monkeypatch.setattr(containers, "_SETTLED", 0.1)
    node = serve(PLATFORM, {f"registry.example.org/axyon-io/{name}:stable": "good"
                            for name in ("postgres", "arkeia", "orion", "fusion")})
    said = {("version", name): version for name, version in VERSIONS.items()}
    said["/bin/fusion", "--version"] = VERSIONS["fusion"]
    node.runtime.execute = lambda _name, command, _timeout: (0, said[command])
    node.nova("deploy")
    return node


@pytest.mark.parametrize("words", [["help"], ["h"], ["--help"], ["-h"]], ids=" ".join)
def test_nova_help_matches_the_document(words):
    ended = run(*words)
    assert (ended.code, flat(ended.out)[:len(flat(NOVA_HELP))]) == (0, flat(NOVA_HELP))


@pytest.mark.parametrize("words", [[], ["help"], ["h"], ["--help"], ["-h"]], ids=" ".join)
def test_novad_help_matches_the_document(words, capsys):
    try:
        code = novad.main(words)
    except SystemExit as ended:
        code = ended.code
    assert (code, flat(capsys.readouterr().out)) == (0, flat(NOVAD_HELP))


@pytest.mark.parametrize("words", [["help", "serve"], ["h", "serve"], ["serve", "-h"], ["serve", "--help"]])
def test_novad_serve_help_has_the_documented_options(words, capsys):
    with contextlib.suppress(SystemExit):
        novad.main(words)
    out = flat(capsys.readouterr().out)
    assert any(line.startswith("--config value the path to the configuration file") for line in out)
    assert any(line.startswith("--pprof-addr value start a performance profiling server on the specified address")
               for line in out)


@pytest.mark.parametrize("words", ["--debug serve", "-D serve", "serve --debug", "serve -D"])
def test_debug_option_is_accepted_before_and_after_serve(words):
    parser, _commands = novad._parsers()
    assert parser.parse_args(words.split()).debug
    assert not parser.parse_args(["serve"]).debug


def test_help_for_a_single_command(capsys):
    for words in (("help", "deploy"), ("h", "deploy"), ("deploy", "--help")):
        assert "usage: nova deploy" in run(*words).out
    assert novad.main(["help", "config"]) == 0
    with pytest.raises(SystemExit) as ended:
        novad.main(["help", "nothing"])
    assert (ended.value.code, "no help topic for 'nothing'" in capsys.readouterr().err) == (2, True)


@pytest.mark.parametrize("flag", ["-v", "--version"])
def test_nova_and_novad_print_their_version(flag, capsys):
    assert run(flag).out == f"nova {nova.__version__}\n"
    with pytest.raises(SystemExit, match="0"):
        novad.main([flag])
    assert capsys.readouterr().out == f"novad {nova.__version__}\n"


def test_platform_info_output_matches_the_document(axyon):
    for words in (("platform-info",), ("service-info", "platform-info")):
        assert flat(axyon.nova(*words).out) == flat(PLATFORM_INFO)
    assert axyon.nova("platform-info").out.startswith(
        "Services\n  - Name: arkeia-db\n    Version: postgres (PostgreSQL) 17.3\n  - Name: arkeia\n")
    found = json.loads(axyon.nova("platform-info", "-f", "json").out)
    assert {one["Component"]: one["Version"] for one in found} == VERSIONS
    assert "Version: 2025.03.18 (2f7ce79)" in axyon.nova("platform-info", "-f", "yaml").out
    assert "| fusion " in axyon.nova("platform-info", "-f", "table").out
    axyon.daemon.deployer.ending.set()  # novad must not start it again
    axyon.runtime.running.pop("axyon-orion")
    assert "  - Name: orion\n    Version: 2025.03.17 (9899f33)\n    State: " in axyon.nova("platform-info").out


def test_service_info_output_matches_the_document(axyon):
    out = axyon.nova("service-info", "fusion").out
    assert flat(out) == flat(SERVICE_INFO)
    assert json.loads(out) == json.loads(SERVICE_INFO)


def test_service_logs_output_matches_the_document(axyon):
    axyon.runtime.said["axyon-orion"] = SERVICE_LOGS.splitlines()
    assert axyon.nova("service-logs", "orion", "--no-follow").out == SERVICE_LOGS
    asked = []
    logs = axyon.runtime.logs
    axyon.runtime.logs = lambda name, follow, tail: asked.append(follow) or logs(name, False, tail)
    for words in ((), ("-f",), ("--follow",), ("--no-follow",)):
        assert axyon.nova("service-logs", "orion", *words).out == SERVICE_LOGS
    assert asked == [True, True, True, False]


@pytest.mark.parametrize("flag", ["--debug", "-D"])
def test_debug_option_shows_calls_without_secrets(axyon, flag):
    ended = axyon.nova(flag, "service-info", "fusion")
    assert flat(ended.out) == flat(SERVICE_INFO)
    assert '/nova.novad.v1.Services/Show {name: "fusion"' in ended.err
    assert "/nova.novad.v1.Services/Show: OK after" in ended.err
    assert "/nova.novad.v1.Services/Show: NOT_FOUND after" in axyon.nova(flag, "service-info", "x", code=3).err
    followed = axyon.nova(flag, "restart", "fusion").err
    assert '/nova.novad.v1.Platform/Restart {components: "fusion"' in followed
    assert "/nova.novad.v1.Platform/Restart: OK after" in followed
    assert axyon.secret not in ended.err + followed
    assert axyon.nova("service-info", "fusion").err == ""


def test_addr_and_secret_are_global_options(axyon):
    address = f"tcp://127.0.0.1:{axyon.server.port}"
    axyon.patch.setenv("NOVA_ADDR", "tcp://127.0.0.1:1")
    axyon.patch.setenv("NOVA_SHARED_SECRET", "wrong")
    for flag in ("--addr", "-a"):
        assert "Services" in axyon.nova(flag, address, "--secret", axyon.secret, "platform-info").out


@pytest.mark.parametrize("words", [
    ("--addr", "tcp://127.0.0.1:1", "--secret", "-x", "platform-info"),
    ("--os-auth-url", "http://127.0.0.1:1", "--os-username", "u", "--os-project-name", "p", "--os-password", "-x",
     "list"),
    ("--os-auth-url", "http://127.0.0.1:1", "--os-auth-type", "token", "--os-token", "-x", "list")])
def test_secret_that_begins_with_a_hyphen_is_accepted(words):
    assert run(*words).code == 4


def test_remove_help_has_the_documented_options():
    out = " ".join(run("help", "remove").out.split())
    for option in ("--remove-volumes Remove all data volumes (default: false)",
                   "--remove-secrets Remove all secret data (default: false)"):
        assert option in out


def test_remove_has_the_documented_options(axyon):
    volume = axyon.data_dir / "volumes/fusion"
    axyon.nova("remove", "--yes")
    assert volume.exists()
    axyon.nova("deploy")
    axyon.nova("remove", "--yes", "--remove-volumes", "--remove-secrets")
    assert not volume.exists()
