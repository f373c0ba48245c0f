"""The program novactl without clusters: facts chapter 10."""

import asyncio
import base64
import json
import os
import re
import subprocess
import sys

import pytest
import yaml

from nova import __version__
from nova.cli.federation import main as program
from nova.cli.federation.completion import script
from nova.common.errors import Invalid
from nova.federator.client.installation import Address, address_of, decode_init, encode_init
from nova.federator.client.status import Line
from nova.federator.kube.config import Kubeconfig, decode, load

KUBECONFIG = Kubeconfig(server="https://203.0.113.9", ca=b"CA\n", certificate=b"CERT\n", key=b"KEY\n", context="nova")


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    def call(*arguments):
        try:
            code = program.main(arguments)
        except SystemExit as end:
            code = end.code
        output = capsys.readouterr()
        return code, output.out, output.err
    return call


@pytest.mark.parametrize("name", ["novactl", "kubectl-nova"])
def test_the_version_line_begins_with_the_name_of_the_program(tmp_path, name):
    """Facts chapter 10: ``kubectl-nova version v0.7.1 (git: a97586b5) built: 20231102171119``."""
    path = tmp_path / name
    path.write_text("import sys\nfrom nova.cli.federation.main import main\nsys.exit(main())\n")
    result = subprocess.run([sys.executable, path, "--version"], capture_output=True, text=True, timeout=60, check=True)
    assert re.fullmatch(rf"{name} version v{re.escape(__version__)} \(git: [0-9a-f]{{8}}\) built: \d{{14}}\n",
                        result.stdout), result.stdout


def test_version_and_help_import_no_client():
    """The program starts fast, since kubectl runs it for each command."""
    for argument in ("--version", "--help"):
        code = ("import sys\nfrom nova.cli.federation.main import main\n"
                f"try: main([{argument!r}])\nexcept SystemExit: pass\n"
                "print([name for name in ('aiohttp', 'asyncio', 'cryptography', 'msgspec', 'yaml') "
                "if name in sys.modules], file=sys.stderr)")
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        assert result.stderr.strip() == "[]"


def test_install_certs_prints_secrets(run):
    """Facts chapter 10: the command of the guide, with a context that is not used and the option -n or --namespace."""
    code, output, errors = run("--context=kind-cp", "install", "certs", "--apiserver-public-endpoint=198.51.100.7",
                               "--namespace=shop", "--nova-node-ip=198.51.100.7")
    assert (code, errors) == (0, "")
    secrets = list(yaml.safe_load_all(output))
    assert [(secret["kind"], secret["metadata"]) for secret in secrets] == [
        ("Secret", {"name": name, "namespace": "shop"})
        for name in ("nova-cert", "etcd-cert", "nova-kubeconfig", "nova-ca")]
    assert base64.b64decode(secrets[0]["data"]["ca.crt"]).startswith(b"-----BEGIN CERTIFICATE-----\n")


@pytest.mark.parametrize(("arguments", "message"), [
    (("install", "certs", "--apiserver-public-endpoint=a b"), "--apiserver-public-endpoint: 'a b' is neither"),
    (("get", "kubeconfig", "--context=missing"), "has no context 'missing'"),
    (("status",), "has no context 'nova'"), (("get", "schedulegroups"), "has no context 'nova'"),
    (("join-command", "Not_A_Name", "--context=x"), "'Not_A_Name' is not a valid name of a cluster"),
    (("install", "agent", "a/b"), "'a/b' is not a valid name of a cluster"),
    (("install", "control-plane", "../x"), "'../x' is not a valid name of a control plane"),
    (("status", "--kubeconfig=/missing"), "Cannot read /missing"),
    (("join-command", "edge", "--context=x", "--server=http://x"), "--server: 'http://x' is not an https address")])
def test_errors_are_a_line_and_exit_code_1(run, tmp_path, arguments, message):
    contexts = KUBECONFIG.render().replace("nova", "x")
    (tmp_path / "kubeconfig").write_text(contexts)
    code, output, errors = run(*arguments)
    assert (code, output) == (1, "")
    assert errors.startswith("novactl: ")
    assert message in errors
    assert errors.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("install",), ("fly",), ("install", "certs"), ("get", "pods"),
                                       ("join-command", "x", "--hours=0"), ("join-command", "x", "--hours=x"),
                                       ("install", "cp", "x", "--replicas=2")])
def test_bad_usage_exits_with_2(run, arguments):
    code, _output, errors = run(*arguments)
    assert code == 2
    assert "usage: novactl" in errors


def test_the_program_installs_itself_as_a_plugin(tmp_path):
    """Facts chapter 10: ``novactl kubectl-install``; a second run changes nothing."""
    path = tmp_path / "novactl"
    path.write_text(f"#!{sys.executable}\nimport sys\nfrom nova.cli.federation.main import main\nsys.exit(main())\n")
    path.chmod(0o755)
    target = tmp_path / "bin"
    target.mkdir()
    for _attempt in range(2):
        subprocess.run([path, "kubectl-install", f"--directory={target}"], check=True, timeout=60)
    environment = {**os.environ, "PATH": f"{target}:{os.environ['PATH']}"}
    output = subprocess.run(["kubectl-nova", "--version"], env=environment, capture_output=True, text=True, check=True,
                            timeout=60).stdout
    assert output.startswith("kubectl-nova version v")
    failed = subprocess.run([path, "kubectl-install", f"--directory={tmp_path / 'missing'}"], capture_output=True,
                            text=True, timeout=60, check=False)
    assert failed.returncode == 1
    assert failed.stderr.startswith(f"novactl: Cannot install {tmp_path / 'missing'}/kubectl-nova: No such file")


@pytest.mark.parametrize(("words", "expected"), [
    (["novactl", "ins"], {"install"}), (["novactl", "install", "c"], {"control-plane", "cp", "certs"}),
    (["kubectl-nova", "--context=x", "get", ""], {"kubeconfig", "schedulegroups"}),
    (["novactl", "certs", "renew", "--fi"], {"--finish"}), (["novactl", "completion", "z"], {"zsh"}),
    (["novactl", "install", "certs", "--nova-"], {"--nova-node-ip"})])
def test_bash_completes_commands_and_options(words, expected):
    code = (f"{script('bash')}\nCOMP_WORDS=({' '.join(word or chr(39) * 2 for word in words)})\n"
            f"COMP_CWORD={len(words) - 1}\n_novactl\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"")
    result = subprocess.run(["bash", "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert expected <= set(result.stdout.split())
    assert all(line.startswith(words[-1]) for line in result.stdout.split())


def test_zsh_gets_the_same_script():
    assert script("zsh").startswith("autoload -U +X bashcompinit && bashcompinit\n")
    assert script("zsh").endswith(script("bash"))


@pytest.mark.parametrize(("service", "environment", "address"), [
    ({"status": {"loadBalancer": {}}}, {}, None), ({}, {}, None),
    ({"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.7"}]}}}, {}, Address("198.51.100.7")),
    ({"status": {"loadBalancer": {"ingress": [{"hostname": "a.example"}]}}}, {}, Address("a.example")),
    ({"status": {"loadBalancer": {"ingress": [{"ip": "2001:db8::1"}]}}}, {}, Address("2001:db8::1")),
    ({"spec": {"type": "NodePort", "ports": [{"nodePort": 32222}]}},
     {"NOVA_API_PUBLIC_HOST_OVERRIDE": "172.18.0.2"}, Address("172.18.0.2", 32222)),
    ({"spec": {"type": "NodePort", "ports": [{"nodePort": 32222}]}}, {}, None)])
def test_the_address_of_the_api_server_is_an_ip_or_a_host(service, environment, address):
    """Facts chapter 8: LoadBalancer with ip or hostname; NodePort 32222 on kind."""
    assert address_of(service, environment) == address


@pytest.mark.parametrize(("address", "url"), [
    (Address("198.51.100.7"), "https://198.51.100.7"), (Address("2001:db8::1"), "https://[2001:db8::1]"),
    (Address("172.18.0.2", 32222), "https://172.18.0.2:32222")])
def test_addresses_are_rendered_as_urls(address, url):
    assert address.url == url


def test_the_kubeconfig_has_the_form_of_the_guide():
    """Facts chapter 10: cluster and context nova, user nova-admin, data inline, ``preferences: {}``."""
    document = yaml.safe_load(KUBECONFIG.render())
    assert document == {
        "apiVersion": "v1", "kind": "Config", "preferences": {}, "current-context": "nova",
        "clusters": [{"name": "nova", "cluster": {"server": "https://203.0.113.9",
                                                  "certificate-authority-data": "Q0EK"}}],
        "contexts": [{"name": "nova", "context": {"cluster": "nova", "user": "nova-admin"}}],
        "users": [{"name": "nova-admin", "user": {"client-certificate-data": "Q0VSVAo=",
                                                  "client-key-data": "S0VZCg=="}}]}
    assert decode(KUBECONFIG.render().encode(), "x") == KUBECONFIG


def test_an_empty_file_among_several_kubeconfig_files_is_skipped(tmp_path):
    """A shell empties ~/.nova/x/nova-kubeconfig before ``novactl get kubeconfig`` writes to it."""
    written, empty = tmp_path / "written", tmp_path / "empty"
    written.write_text(KUBECONFIG.render())
    empty.write_text("")
    assert load([empty, written]).server == KUBECONFIG.server
    with pytest.raises(Invalid, match="is not a mapping"):
        load([empty])


def test_credentials_of_join_command_survive_the_command_line():
    init = Kubeconfig(server="https://203.0.113.9", ca=b"CA\n", token="a.b", context="nova")
    assert decode_init(encode_init(init)) == init


@pytest.mark.parametrize("text", ["%", "", base64.b64encode(b"- x").decode(), base64.b64encode(b"{").decode(),
                                  base64.b64encode(json.dumps({"contexts": 1}).encode()).decode(),
                                  base64.b64encode(json.dumps({"contexts": [{"name": "a", "context": {
                                      "cluster": [1], "user": {}}}]}).encode()).decode()])
def test_damaged_credentials_are_refused_by_name(text):
    with pytest.raises(Invalid, match="--init-kubeconfig"):
        decode_init(text)


def test_credentials_that_refer_to_files_are_refused():
    """A kubeconfig from elsewhere must not read files of this machine."""
    text = KUBECONFIG.render().replace("certificate-authority-data: Q0EK", "certificate-authority: /etc/shadow")
    with pytest.raises(Invalid, match="/etc/shadow"):
        decode(text.encode(), "x")


def test_lines_of_the_status_end_with_their_mark():
    assert str(Line("* API Server status... Running", "√")) == "* API Server status... Running √"
    assert str(Line("please connect")) == "please connect"


def test_commands_are_those_of_chapter_10(run):
    """Facts chapter 10: each command exists with its flags, before and after the command."""
    parser = program.parser("novactl")
    for words in ("--context=a install control-plane x --namespace=n --image-repository=r --image-tag=t",
                  "install cp x --context a", "install agent x --context=a --image-tag=t",
                  "uninstall agent x --context=a", "uninstall control-plane x --context=a",
                  "--context=a install certs --apiserver-public-endpoint=h --namespace=n --nova-node-ip=h",
                  "--context=a get kubeconfig -n n", "get schedulegroups --context=a",
                  "--context=a --hosting-cluster-context=h --hosting-cluster-nova-namespace=n status",
                  "join-command x --context a", "certs renew --context=a", "kubectl-install --context=a"):
        options = parser.parse_args(words.split())
        assert options.context == "a"
        if "=n" in words or " n" in words:
            assert "n" in (options.namespace, options.hosting_cluster_nova_namespace)
    assert asyncio.iscoroutinefunction(program.main) is False
