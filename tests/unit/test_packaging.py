"""Packaged files beside the code: samples, units, entry points."""

import configparser
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nova import conf, policies
from tests.paths import ROOT

UNITS = sorted((ROOT / "etc/systemd").glob("*.service"))


def setup_cfg():
    parser = configparser.ConfigParser(delimiters="=")
    parser.optionxform = str
    parser.read(ROOT / "setup.cfg")
    return parser


def entry_points(group):
    """{name: target} as setup.cfg declares them."""
    lines = setup_cfg()["options.entry_points"][group].strip().splitlines()
    return {name.strip(): target.strip() for name, target in (line.split("=", 1) for line in lines)}


def requirements():
    """Return the requirements of setup.cfg including extras."""
    options = setup_cfg()
    lines = [options["options"]["install_requires"], *options["options.extras_require"].values()]
    return [Requirement(line) for line in "\n".join(lines).split("\n") if line.strip()]


def constraints():
    """{package: tested version}"""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): version for name, version in
            (line.split("==") for line in lines if not line.startswith("#"))}


def needed():
    """The packages that the requirements pull in, and they in turn; those of them that are not installed here."""
    found, missing, waiting = set(), set(), requirements()
    while waiting:
        wanted = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (name, *wanted.extras) in found:
            continue
        found.add((name, *wanted.extras))
        try:
            further = [Requirement(line) for line in importlib.metadata.requires(name) or []]
        except importlib.metadata.PackageNotFoundError:
            missing.add(name)
            continue
        waiting += [one for one in further if one.marker is None or any(
            one.marker.evaluate({"extra": extra}) for extra in wanted.extras or {""})]
    return {name for name, *_extras in found} - {"setuptools"}, missing


def blocks(sample):
    """{(group, namespace): text} of a sample; the libraries' blocks change with their releases."""
    found = {}
    for section in re.split(r"^(?=\[[\w-]+\]$)", sample, flags=re.MULTILINE)[1:]:
        group = section.partition("]")[0][1:]
        for block in re.split(r"^#\n(?=# From )", section, flags=re.MULTILINE)[1:]:
            found[group, block.splitlines()[0].removeprefix("# From ")] = block.strip()
    return found


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    directory = tmp_path_factory.mktemp("samples")
    subprocess.run([ROOT / "tools/generate-samples.sh", directory], check=True, timeout=120,
                   env={**os.environ, "PYTHON": sys.executable})
    return directory


@pytest.fixture(scope="module")
def sample():
    return (ROOT / "etc/nova/nova.conf.sample").read_text()


def test_the_sample_configuration_is_up_to_date(generated, sample):
    kept = blocks(sample)
    made = blocks((generated / "nova.conf.sample").read_text())
    assert kept.keys() == made.keys(), "run tools/generate-samples.sh"
    # [glance] is mostly keystoneauth's: its release decides.
    own = [key for key in made if key[1] == "nova.conf" and key[0] != "glance"]
    assert {key: kept[key] for key in own} == {key: made[key] for key in own}, "run tools/generate-samples.sh"


def test_the_sample_policy_is_up_to_date(generated):
    kept, made = ROOT / "etc/nova/policy.yaml.sample", generated / "policy.yaml.sample"
    assert kept.read_text() == made.read_text(), "run tools/generate-samples.sh"


def test_the_sample_says_how_glance_is_asked(sample):
    glance = blocks(sample)["glance", "nova.conf"]
    for name in ("num_retries", "auth_type", "auth_url", "username", "password", "project_name", "region_name",
                 "endpoint_override"):
        assert re.search(rf"^#{name} = ", glance, re.MULTILINE), name


def test_no_default_of_the_sample_comes_from_this_machine(generated, tmp_path):
    """Generated as another machine it is the same."""
    hook = tmp_path / "sitecustomize.py"
    hook.write_text("import os, socket\nsocket.gethostname = lambda: 'another-machine'\nos.cpu_count = lambda: 77\n")
    paths = filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])
    env = {**os.environ, "PYTHON": sys.executable, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(paths)}
    subprocess.run([ROOT / "tools/generate-samples.sh", tmp_path / "out"], check=True, timeout=120, env=env)
    assert (tmp_path / "out/nova.conf.sample").read_text() == (generated / "nova.conf.sample").read_text()


def test_every_option_has_help():
    without = [f"[{group or 'DEFAULT'}]{option.name}" for group, options in conf.groups() for option in options
               if not (option.help or "").strip()]
    assert not without


def test_every_option_is_declared_once():
    seen = [(group, option.dest) for group, options in conf.groups() for option in options]
    assert len(seen) == len(set(seen))


def test_every_rule_says_what_it_guards():
    without = [rule.name for rule in policies.list_rules()
               if not rule.description or (rule.name.startswith("os_compute_api:") and not rule.operations)]
    assert not without


@pytest.mark.parametrize("group", list(setup_cfg()["options.entry_points"]))
def test_entry_points_lead_somewhere(group):
    if group == "castellan.drivers":
        pytest.importorskip("castellan")  # of the extra "signatures"
    for name, target in entry_points(group).items():
        module, _, attribute = target.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute)), f"{group} {name}"


# --- versions ------------------------------------------------------------------------------------------
def test_every_requirement_was_tested_in_a_version_that_it_allows():
    tested = constraints()
    untested = [str(one) for one in requirements() if tested.get(canonicalize_name(one.name)) not in one.specifier]
    assert not untested


def test_every_requirement_names_its_oldest_version():
    assert not [str(one) for one in requirements() if ">=" not in str(one.specifier)]


def test_what_requirements_pull_in_is_constrained_and_nothing_else_is():
    tested, (wanted, missing) = set(constraints()), needed()
    assert wanted <= tested, "pip freeze them into constraints.txt"
    if not missing:  # without an extra nobody knows what it would have pulled in
        assert wanted == tested


# --- systemd -------------------------------------------------------------------------------------------
def unit(path):
    parser = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
    parser.optionxform = str
    parser.read(path)
    return parser


def test_every_service_has_a_unit():
    services = {name for name in entry_points("console_scripts")
                if name not in ("nova-manage", "nova-status", "nova-allinone", "nova")}
    assert {path.stem for path in UNITS} == services


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_its_service_and_lets_it_drain(path):
    service = unit(path)["Service"]
    assert service["ExecStart"] == ("novad serve --config /etc/novad/novad.toml" if path.stem == "novad" else
                                    f"{path.stem} --config-file /etc/nova/nova.conf")
    assert service["Restart"] == "on-failure"
    assert service["User"] == ("root" if path.stem in ("nova-compute", "nova-metadata", "novad") else "nova")
    # Guests' DHCP servers are children of nova-compute and live on without it, as containers do without novad.
    assert service["KillMode"] == ("process" if path.stem in ("nova-compute", "novad") else "mixed")
    drain = {"nova-api": 90, "nova-metadata": 15, "nova-novncproxy": 15, "nova-spicehtml5proxy": 15,
             "nova-serialproxy": 15, "novad": 60}.get(path.stem, 60)
    assert int(service["TimeoutStopSec"]) > drain


# What root needs in the units that are root: with less they do not do their work, and more is not given.
_RIGHTS = {
    "nova-compute": frozenset(f"CAP_{name}" for name in (
        "NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "SYS_ADMIN", "SYS_RESOURCE", "SYS_NICE", "CHOWN", "DAC_OVERRIDE",
        "DAC_READ_SEARCH", "FOWNER", "FSETID", "MKNOD", "IPC_LOCK", "SETUID", "SETGID", "SETPCAP", "KILL",
        "SYS_RAWIO")),
    "nova-metadata": frozenset(f"CAP_{name}" for name in (
        "SYS_ADMIN", "SYS_PTRACE", "NET_BIND_SERVICE", "SETUID", "SETGID", "KILL")),
}


# What a container may, its service's children must be able to: novad's components are given privileges by a file.
@pytest.mark.parametrize("path", [path for path in UNITS if path.stem != "novad"], ids=lambda path: path.stem)
def test_a_unit_has_no_privileges_that_it_does_not_need(path):
    service = unit(path)["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert service["UMask"] == ("0022" if path.stem == "nova-compute" else "0077")
    rights = {name for line in path.read_text().splitlines() if line.startswith("CapabilityBoundingSet=")
              for name in line.partition("=")[2].split()}
    assert "CapabilityBoundingSet=" in path.read_text()
    assert not rights - _RIGHTS.get(path.stem, frozenset())
    if path.stem != "nova-compute":  # whose mounts are for others, too
        assert service["ProtectSystem"] == "strict"
    if service["User"] == "nova":
        assert not rights


def test_novad_and_its_components_write_no_core_files():
    assert unit(ROOT / "etc/systemd/novad.service")["Service"]["LimitCORE"] == "0"


def test_nothing_is_denied_to_novad_since_containers_would_inherit_it():
    """Filters of system calls kill programs of other architectures; mounts in a namespace of novad's own would be gone
    with it; and a directory below /run that systemd removes has what podman knows of containers that run."""
    settings = {name for name, _value in unit(ROOT / "etc/systemd/novad.service").items("Service")}
    assert not [name for name in settings if name.startswith((
        "Private", "Protect", "Restrict", "SystemCall", "Lock", "MemoryDeny", "NoNew", "Capability", "ReadOnly",
        "Runtime", "Inaccessible", "BindPaths", "RootDirectory", "DynamicUser"))]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize(("name", "most"), [("nova-api", 3.0), ("nova-conductor", 3.0), ("nova-scheduler", 3.0),
                                            ("nova-metadata", 5.0), ("nova-compute", 8.0)])
def test_systemd_finds_little_that_a_unit_exposes(name, most):
    """The scale has ten points; services that need root have a higher exposure."""
    result = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={int(most * 10)}",
                             ROOT / "etc/systemd" / f"{name}.service"], capture_output=True, text=True, timeout=60,
                            check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_understands_the_units(tmp_path):
    for path in UNITS:
        # Whether the services are installed in systemd's own path is not the question.
        text = path.read_text().replace(f"ExecStart={path.stem}", "ExecStart=/bin/true")
        (tmp_path / path.name).write_text(text)
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
                             *(tmp_path / path.name for path in UNITS)],
                            capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in result.stderr.splitlines() if "nova" in line]
    assert not complaints
