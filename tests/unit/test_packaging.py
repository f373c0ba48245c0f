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
    """Return {name: target} of the entry points in setup.cfg."""
    lines = setup_cfg()["options.entry_points"][group].strip().splitlines()
    return {name.strip(): target.strip() for name, target in (line.split("=", 1) for line in lines)}


def requirements():
    """Return the requirements of setup.cfg including extras."""
    options = setup_cfg()
    lines = [options["options"]["install_requires"], *options["options.extras_require"].values()]
    return [Requirement(line) for line in "\n".join(lines).split("\n") if line.strip()]


def constraints():
    """Return {package: tested version}."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return {canonicalize_name(name): version for name, version in
            (line.split("==") for line in lines if not line.startswith("#"))}


def needed():
    """Return the transitive requirements, and the subset that is not installed here."""
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
    """Return {(group, namespace): text} of a sample. Blocks of libraries change with their releases."""
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


def test_sample_configuration_is_up_to_date(generated, sample):
    kept = blocks(sample)
    made = blocks((generated / "nova.conf.sample").read_text())
    assert kept.keys() == made.keys(), "run tools/generate-samples.sh"
    # [glance] mostly has options of keystoneauth, which depend on its release.
    own = [key for key in made if key[1] == "nova.conf" and key[0] != "glance"]
    assert {key: kept[key] for key in own} == {key: made[key] for key in own}, "run tools/generate-samples.sh"


def test_sample_policy_is_up_to_date(generated):
    kept, made = ROOT / "etc/nova/policy.yaml.sample", generated / "policy.yaml.sample"
    assert kept.read_text() == made.read_text(), "run tools/generate-samples.sh"


def test_sample_configuration_has_the_glance_client_options(sample):
    glance = blocks(sample)["glance", "nova.conf"]
    for name in ("num_retries", "auth_type", "auth_url", "username", "password", "project_name", "region_name",
                 "endpoint_override"):
        assert re.search(rf"^#{name} = ", glance, re.MULTILINE), name


def test_sample_configuration_does_not_depend_on_the_machine(generated, tmp_path):
    """Generate the sample with another hostname and number of CPUs, and compare."""
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


def test_every_policy_rule_has_a_description_and_operations():
    without = [rule.name for rule in policies.list_rules()
               if not rule.description or (rule.name.startswith("os_compute_api:") and not rule.operations)]
    assert not without


@pytest.mark.parametrize("group", list(setup_cfg()["options.entry_points"]))
def test_entry_points_reference_callables(group):
    if group == "castellan.drivers":
        pytest.importorskip("castellan")  # a dependency of the extra "signatures"
    for name, target in entry_points(group).items():
        module, _, attribute = target.partition(":")
        assert callable(getattr(importlib.import_module(module), attribute)), f"{group} {name}"


# --- versions ------------------------------------------------------------------------------------------
def test_constraints_satisfy_the_requirements():
    tested = constraints()
    untested = [str(one) for one in requirements() if tested.get(canonicalize_name(one.name)) not in one.specifier]
    assert not untested


def test_every_requirement_has_a_minimum_version():
    assert not [str(one) for one in requirements() if ">=" not in str(one.specifier)]


def test_constraints_list_exactly_the_required_packages():
    tested, (wanted, missing) = set(constraints()), needed()
    assert wanted <= tested, "pip freeze them into constraints.txt"
    if not missing:  # the requirements of a missing extra are unknown
        assert wanted == tested


# --- systemd -------------------------------------------------------------------------------------------
def unit(path):
    parser = configparser.ConfigParser(delimiters="=", interpolation=None, strict=False)
    parser.optionxform = str
    parser.read(path)
    return parser


def test_every_service_has_a_systemd_unit():
    services = {name for name in entry_points("console_scripts")
                if name not in ("nova-manage", "nova-status", "nova-allinone", "nova",
                                "nova-federator", "novactl", "kubectl-nova")}  # in containers, or by novactl up
    assert {path.stem for path in UNITS} == services


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_unit_starts_its_service_and_waits_for_its_drain(path):
    service = unit(path)["Service"]
    assert service["ExecStart"] == ("novad serve --config /etc/novad/novad.toml" if path.stem == "novad" else
                                    f"{path.stem} --config-file /etc/nova/nova.conf")
    assert service["Restart"] == "on-failure"
    assert service["User"] == ("root" if path.stem in ("nova-compute", "nova-metadata", "novad") else "nova")
    # DHCP servers of guests and containers of novad must survive a restart of their parent service.
    assert service["KillMode"] == ("process" if path.stem in ("nova-compute", "novad") else "mixed")
    drain = {"nova-api": 90, "nova-metadata": 15, "nova-novncproxy": 15, "nova-spicehtml5proxy": 15,
             "nova-serialproxy": 15, "novad": 60}.get(path.stem, 60)
    assert int(service["TimeoutStopSec"]) > drain


# Capabilities that the units with User=root require.
_RIGHTS = {
    "nova-compute": frozenset(f"CAP_{name}" for name in (
        "NET_ADMIN", "NET_RAW", "NET_BIND_SERVICE", "SYS_ADMIN", "SYS_RESOURCE", "SYS_NICE", "CHOWN", "DAC_OVERRIDE",
        "DAC_READ_SEARCH", "FOWNER", "FSETID", "MKNOD", "IPC_LOCK", "SETUID", "SETGID", "SETPCAP", "KILL",
        "SYS_RAWIO")),
    "nova-metadata": frozenset(f"CAP_{name}" for name in (
        "SYS_ADMIN", "SYS_PTRACE", "NET_BIND_SERVICE", "SETUID", "SETGID", "KILL")),
}


# novad is exempt: its containers inherit its privileges, which a file grants to its components.
@pytest.mark.parametrize("path", [path for path in UNITS if path.stem != "novad"], ids=lambda path: path.stem)
def test_systemd_unit_has_only_the_required_privileges(path):
    service = unit(path)["Service"]
    assert service["NoNewPrivileges"] == "yes"
    assert service["UMask"] == ("0022" if path.stem == "nova-compute" else "0077")
    rights = {name for line in path.read_text().splitlines() if line.startswith("CapabilityBoundingSet=")
              for name in line.partition("=")[2].split()}
    assert "CapabilityBoundingSet=" in path.read_text()
    assert not rights - _RIGHTS.get(path.stem, frozenset())
    if path.stem != "nova-compute":  # its mounts must be visible to other services
        assert service["ProtectSystem"] == "strict"
    if service["User"] == "nova":
        assert not rights


def test_novad_unit_disables_core_files():
    assert unit(ROOT / "etc/systemd/novad.service")["Service"]["LimitCORE"] == "0"


def test_novad_unit_has_no_sandboxing_that_containers_would_inherit():
    """System call filters kill programs of other architectures, mounts in a private namespace end with novad, and a
    runtime directory that systemd removes holds podman's state of running containers."""
    settings = {name for name, _value in unit(ROOT / "etc/systemd/novad.service").items("Service")}
    assert not [name for name in settings if name.startswith((
        "Private", "Protect", "Restrict", "SystemCall", "Lock", "MemoryDeny", "NoNew", "Capability", "ReadOnly",
        "Runtime", "Inaccessible", "BindPaths", "RootDirectory", "DynamicUser"))]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
@pytest.mark.parametrize(("name", "most"), [("nova-api", 3.0), ("nova-conductor", 3.0), ("nova-scheduler", 3.0),
                                            ("nova-metadata", 5.0), ("nova-compute", 8.0)])
def test_systemd_security_exposure_is_below_the_threshold(name, most):
    """The scale ends at 10; services that need root have a higher exposure."""
    result = subprocess.run(["systemd-analyze", "security", "--offline=true", f"--threshold={int(most * 10)}",
                             ROOT / "etc/systemd" / f"{name}.service"], capture_output=True, text=True, timeout=60,
                            check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")
def test_systemd_analyze_verify_accepts_the_units(tmp_path):
    for path in UNITS:
        # The services need not be installed in systemd's search path.
        text = path.read_text().replace(f"ExecStart={path.stem}", "ExecStart=/bin/true")
        (tmp_path / path.name).write_text(text)
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", "--recursive-errors=no",
                             *(tmp_path / path.name for path in UNITS)],
                            capture_output=True, text=True, timeout=60, check=False)
    complaints = [line for line in result.stderr.splitlines() if "nova" in line]
    assert not complaints
