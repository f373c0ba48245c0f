"""Rules for the code base: imports, sizes, names, texts and documents."""

import ast
import collections
import functools
import pkgutil
import re
import subprocess
import sys

import pytest

from tests.paths import ROOT
from tools import route_table

SOURCES = sorted(path for top in ("nova", "tests", "tools", "devstack") for path in (ROOT / top).rglob("*")
                 if path.suffix in (".py", ".sh") and "__pycache__" not in path.parts
                 and not path.stem.startswith("novad_pb2"))  # generated
HARD_LIMIT = 600
# First words of docstrings that are neither a verb nor a noun.
_VAGUE = re.compile(
    r"(what|whether|how|why|where|when|which|who|whom|whose|that|this|these|those|it|its|they|their|them|he|she|his|her|"
    r"of|for|with|without|in|on|at|by|from|to|into|as|if|while|after|before|until|all|one|each|every|everything|nothing|"
    r"none|no|nobody|somebody|not|so|is|are|was|has|have|there|here|both|others|another|some|any|only|also)[\s,.:;]",
    re.IGNORECASE)

# The first words that tests may not use; their docstrings may quantify: "Every list ...", "Two guests ...".
_VAGUE_IN_TESTS = re.compile(
    r"(what|whether|how|why|where|when|which|who|whom|whose|it|its|they|their|them|he|she|his|her|nobody|somebody|none|"
    r"of|for|with|without|in|on|at|by|from|to|as|if|while|also|not|both)[\s,.:;]", re.IGNORECASE)
# Meaningless words in names.
_MEANINGLESS = {"told", "tell", "tells", "telling", "look", "looks", "looked", "looking", "known", "found", "one",
                "each", "kept", "gone", "asked", "whoever"}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


@functools.cache
def nodes_of(tree):
    return list(ast.walk(tree))


def imports_of(config):
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    return subprocess.run([sys.executable, "-c", script, config], cwd=ROOT, capture_output=True, text=True,
                          timeout=300, check=False)


def test_import_contracts_hold():
    result = imports_of(ROOT / "pyproject.toml")
    assert result.returncode == 0, result.stdout
    assert "27 kept, 0 broken" in result.stdout


def test_violation_of_an_import_contract_is_detected(tmp_path):
    """Remove the conductor from the allowed importers of the SQL contract, which breaks it."""
    text = (ROOT / "pyproject.toml").read_text()
    broken = text.replace('["nova.db", "nova.conductor", "nova.cmd"]', '["nova.db", "nova.cmd"]', 1)
    assert broken != text
    config = tmp_path / "pyproject.toml"
    config.write_text(broken)
    result = imports_of(config)
    assert result.returncode != 0
    assert "1 broken" in result.stdout, result.stdout


@pytest.mark.parametrize("package", ["api", "scheduler", "compute", "telemetry"])
def test_services_without_database_access_import_no_database_modules(package):
    """Import contracts hold also for the modules that a process loads at runtime."""
    modules = [f"nova.{path.relative_to(ROOT / 'nova').with_suffix('').as_posix().replace('/', '.')}"
               for path in (ROOT / "nova" / package).rglob("*.py") if path.stem not in ("__init__", "wsgi")]
    script = (f"import importlib, sys, warnings; warnings.simplefilter('ignore'); import nova.bus\n"
              f"for name in {modules!r}: importlib.import_module(name)\n"
              "print([name for name in ('nova.db', 'sqlalchemy', 'alembic', 'libvirt') if name in sys.modules])")
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
                           check=True)
    assert found.stdout.strip() == "[]"


def test_api_workers_import_no_cryptography_module():
    """The module costs eight megabytes per worker, and few requests need it."""
    script = ("import sys, warnings; warnings.simplefilter('ignore'); import nova.cmd.api_workers\n"
              "print('nova.api.app' in sys.modules, 'cryptography' in sys.modules)")
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
                           check=True)
    assert found.stdout.split() == ["True", "False"]


def test_source_files_have_at_most_600_lines():
    long = {str(path.relative_to(ROOT)): lines for path in SOURCES
            if (lines := len(path.read_text().splitlines())) > HARD_LIMIT}
    assert not long, f"more than {HARD_LIMIT} lines: split by idea"


# Maximum number of lines of Python code of a package, without generated code.
PACKAGE_LIMITS = {"nova": 73_800, "nova/cli": 4_500, "nova/cli/federation": 900, "nova/common": 500,
                  "nova/ec2": 3_000, "nova/federator": 14_000, "nova/novad": 6_000, "nova/placement": 1_050,
                  "nova/virt/ironic": 750, "nova/virt/uml": 2_300, "nova/virt/vmware": 2_300}


@pytest.mark.parametrize(("package", "limit"), PACKAGE_LIMITS.items())
def test_packages_have_at_most_their_number_of_lines(package, limit):
    """A package inside another one that has a limit of its own does not count for the outer one. The programs of the
    other two products in nova/cmd do not count for the suite."""
    inner = [ROOT / name for name in (*PACKAGE_LIMITS, "nova/cmd/federator.py", "nova/cmd/novad.py")
             if name.startswith(f"{package}/")]
    lines = sum(len(path.read_text().splitlines()) for path in SOURCES if path.suffix == ".py"
                and ROOT / package in path.parents and not set(inner).intersection((path, *path.parents)))
    assert 100 < lines <= limit


def test_folders_have_at_most_25_modules():
    """Folders with revisions of the schema are exempt, because revisions are numbered."""
    folders = collections.Counter(path.parent for path in SOURCES if path.suffix == ".py"
                                  and path.name != "__init__.py" and path.parent.name != "versions")
    assert {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > 25} == {}


# Functions that may read the wall clock of their machine, with the reason. All other functions use the database's clock
# (nova.db.sql.clock, Control.now) or a monotonic clock.
_ONE_MACHINE = "novad has one machine and no database; shown, or compared with times of the same clock"
_SHOWN = "shown only"
WALL_CLOCK = {
    "nova/objects/base.py utcnow": "defines utcnow",
    "nova/db/sql/clock.py now": "the clock of a process that has not asked the database",
    "nova/bus/deadlines.py stamp": "when a message was sent, for metrics",
    "nova/bus/message_signing.py Keys._verify":
        "the age of a signed message between machines, whose clocks an operator keeps alike",
    "nova/telemetry/metrics.py finished": "durations for histograms",
    "nova/telemetry/metrics.py handled": "durations for histograms",
    "nova/telemetry/worker_stats.py Meter.take": "when a worker reported, for the status page of the same machine",
    "nova/telemetry/worker_stats.py WorkerStatistics.read": "which workers of the same machine the status page shows",
    "nova/notifications/messages.py NotificationBuilder.__init__": "the timestamp of a notification",
    "nova/metadata/tree.py Tree._openstack": "the date by which metadata versions are listed",
    "nova/compute/monitors/cpu.py VirtDriverMonitor.measure": "when a sample was taken",
    "nova/virt/images/imagecache.py _age": "ages of files by the same clock; an image can be fetched again",
    "nova/virt/images/imagecache.py _touch": "the time of the last use of an image, for _age",
    "nova/volume/local.py LocalVolumes.start":
        "ages of files by the same clock; only a day after an upload has ended",
    "nova/virt/fake/guests.py GuestStore.boot": _SHOWN,
    "nova/virt/fake/roles.py _diagnostics": _SHOWN,
    "nova/virt/libvirt/diagnostics.py _values": _SHOWN,
    "nova/image/directory.py _now": _SHOWN,
    "nova/api/compute/accounts/usages.py _Period.__init__": "the default period of a report",
    "nova/api/compute/accounts/usages.py audit_index": "the default period of a report",
    "nova/api/keys.py _certificate": "validity of a certificate, which others judge by their wall clocks",
    "nova/ec2/instances.py _now": _SHOWN,
    "nova/ec2/servers.py _ended": "which terminated instances are shown",
    "nova/cli/login.py SessionCache.load": "expiry of tokens, which Keystone states by the wall clock",
    "nova/cli/login.py SessionCache.save": "ages of files by the same clock",
    "nova/cli/login.py Login.authenticate": "expiry of tokens, which Keystone states by the wall clock",
    "nova/cli/platform/daemons.py discover": _SHOWN,
    "nova/cli/platform/show.py info": _SHOWN,
    "nova/cli/resources/usage.py _range": "the default period of a report",
    "nova/federator/client/certificates.py _builder": "validity of a certificate, which others judge by their clocks",
    "nova/federator/api/times.py now": _SHOWN,
    "nova/federator/api/times.py seconds_since": "idle and waiting times that began in another process",
    "nova/federator/api/times.py now_exactly": "renewals of leases, of which only changes are observed",
    "nova/federator/client/tokens.py create_token": "expiry of a token, which the API server judges by its clock",
    "nova/federator/clusters/join.py remaining": "validity of a certificate, which others judge by their clocks",
    "nova/federator/clusters/lease.py ": "the clock since boot, which is monotonic",
    "nova/federator/controllers/signing.py Authority.sign":
        "validity of a certificate, which others judge by their clocks",
    "nova/federator/local/pki.py Authority._builder": "validity of a certificate, which others judge by their clocks",
    "nova/common/profiling.py pprof": "the time of a profile",
    "nova/novad/daemon.py Daemon.__init__": _SHOWN,
    "nova/novad/daemon.py Daemon.prune": _ONE_MACHINE,
    "nova/novad/daemon.py Daemon._check": _ONE_MACHINE,
    "nova/novad/deployment/journal.py Journal.begin": _ONE_MACHINE,
    "nova/novad/deployment/journal.py Journal.finish": _ONE_MACHINE,
    "nova/novad/deployment/journal.py Journal.add_backup": _ONE_MACHINE,
    "nova/novad/release/updates.py Updates.latest": "expiry of a release list, stated by the wall clock of its signer",
    "nova/novad/runtime/podman.py _seconds": _SHOWN,
}
_CLOCKS = {"nova.objects.base.utcnow", "time.time", "time.time_ns", "time.ctime", "time.localtime", "time.gmtime",
           "time.strftime", "time.clock_gettime", "time.clock_gettime_ns", "datetime.datetime.now",
           "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today", "sqlalchemy.func.now",
           "sqlalchemy.func.current_timestamp", "sqlalchemy.func.localtimestamp", "sqlalchemy.func.sysdate"}
# Arguments with which these functions format another time, or read another clock.
_OTHER_TIME = {"time.ctime": 1, "time.localtime": 1, "time.gmtime": 1, "time.strftime": 2}


class _ClockReads(ast.NodeVisitor):
    """Collects the qualified names of functions that read the wall clock, or refer to a function that does."""

    def __init__(self, module):
        self.found, self._scope = set(), []
        self._imported = {"utcnow": "nova.objects.base.utcnow"} if module == "nova/objects/base.py" else {}

    def visit_Import(self, node):
        self._imported.update({alias.asname or alias.name: alias.name for alias in node.names})

    def visit_ImportFrom(self, node):
        self._imported.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})

    def visit_FunctionDef(self, node):
        self._scope.append(node.name)
        self.generic_visit(node)
        self._scope.pop()

    visit_AsyncFunctionDef = visit_ClassDef = visit_FunctionDef

    def visit_Call(self, node):
        name = self._full_name(node.func)
        boot_time = "clock_gettime" in name and "REALTIME" not in ast.unparse(node)
        if boot_time or len(node.args) >= _OTHER_TIME.get(name, 99):
            for argument in node.args:
                self.visit(argument)
        else:
            self.generic_visit(node)

    def visit_Name(self, node):
        if self._full_name(node) in _CLOCKS:
            self.found.add(".".join(self._scope))

    def visit_Attribute(self, node):
        if self._full_name(node) in _CLOCKS:
            self.found.add(".".join(self._scope))
        self.generic_visit(node)

    def _full_name(self, node):
        first, dot, rest = ast.unparse(node).partition(".")
        return f"{self._imported.get(first, first)}{dot}{rest}"


def clock_reads(module, tree):
    reads = _ClockReads(module)
    reads.visit(tree)
    return {f"{module} {name}" for name in reads.found}


def test_only_listed_functions_read_the_wall_clock(capsys):
    """A wrong clock of a conductor must not confirm, reclaim or offload a server too early."""
    found = set().union(*(clock_reads(path.relative_to(ROOT).as_posix(), tree_of(path))
                          for path in SOURCES if path.suffix == ".py" and ROOT / "nova" in path.parents))
    assert found == set(WALL_CLOCK), "use nova.db.sql.clock, Control.now or time.monotonic; or give a reason here"
    with capsys.disabled():
        print(f"\n{len(found)} functions read the wall clock, none for a decision about servers")


@pytest.mark.parametrize("code", [
    "from nova.objects.base import utcnow as now\ndef f(): return now()",
    "from nova.objects import base\ndef f(): return base.utcnow() - base.timedelta(1)",
    "import time as t\ndef f(clock=t.time): pass", "from time import time\ndef f(): return time()",
    "import datetime\ndef f(): import os; return datetime.datetime.now(datetime.UTC)",
    "from datetime import datetime as d\ndef f(): return map(d.fromtimestamp, [d.today()])",
    "import time\nasync def f(): return time.strftime('%Y')",
    "import sqlalchemy as sa\ndef f(): return sa.func.now()",
])
def test_every_way_to_read_the_wall_clock_is_found(code):
    assert clock_reads("nova/x.py", ast.parse(code)) == {"nova/x.py f"}


def test_other_clocks_are_not_reported():
    code = ("import time\nfrom nova.db.sql import clock\ndef f(): return time.monotonic(), clock.now(), "
            "time.localtime(1), time.strftime('%Y', time.gmtime(1)), time.clock_gettime(time.CLOCK_BOOTTIME)")
    assert clock_reads("nova/x.py", ast.parse(code)) == set()


def test_ip_addresses_are_parsed_in_plain_ip_only():
    """Other parsers may accept an IPv6 zone, which may contain arbitrary text of a user."""
    read = re.compile(r"\bipaddress\.(ip_(address|network|interface)|IPv6(Address|Network|Interface))\((?!\()")
    found = [f"{path.relative_to(ROOT)}:{number}"
             for path in set((ROOT / "nova").rglob("*.py")) - {ROOT / "nova/common/plain_ip.py"}
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if read.search(line)]
    assert not found, "nova/common/plain_ip.py"


def patched_attributes(path):
    """Yield the attributes of the product that a test assigns, as (dotted name of the owner, attribute)."""
    imported, nodes = {}, nodes_of(tree_of(path))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nova"):
            imported.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in nodes:
        if (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
                and node.value.id in imported):
            yield imported[node.value.id], node.attr


def test_attributes_assigned_by_tests_exist_in_the_product():
    """Assignments to a renamed attribute would silently have no effect."""
    patched = {pair for path in SOURCES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == "tests"
               for pair in patched_attributes(path)}
    assert patched
    assert [pair for pair in patched if not hasattr(pkgutil.resolve_name(pair[0]), pair[1])] == []


def test_source_files_contain_no_open_task_markers():
    # A marker in quotes is a value of the EC2 metadata tree.
    marker = re.compile(r"(?<!\")\b(TO" r"DO|FIX" r"ME)\b(?!\")")
    found = [f"{path.relative_to(ROOT)}:{number}" for path in SOURCES
             for number, line in enumerate(path.read_text().splitlines(), 1) if marker.search(line)]
    assert not found


# Operations that upstream serves and this product does not: the list only shrinks.
NOT_SERVED: set[str] = set()


def docstrings(path):
    for node in nodes_of(tree_of(path)):
        if (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module))
                and (text := ast.get_docstring(node))):
            yield getattr(node, "name", path.stem), text


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Rule 2 of the style: the first word is a verb or a noun. Docstrings of tests may also quantify."""
    paths = [path for path in SOURCES if path.suffix == ".py"]
    texts = [(path.relative_to(ROOT), name, text) for path in paths for name, text in docstrings(path)]
    assert len(texts) > 5000
    assert [f"{path}: {name}: {text.splitlines()[0]}" for path, name, text in texts
            if (_VAGUE if path.parts[0] == "nova" else _VAGUE_IN_TESTS).match(text)] == []


def parsed(top):
    for path in SOURCES:
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == top:
            yield path.relative_to(ROOT), tree_of(path)


def names_of(path, tree):
    """Yield the names that a module defines for functions, arguments, variables and attributes.

    Omits names that an interface prescribes: methods of classes with a base, and arguments of calls on the bus.
    """
    on_the_bus = path.parts[:2] == ("nova", "rpcapi") or path.parts[:3] == ("nova", "conductor", "endpoints")
    inherited = {method for node in nodes_of(tree) if isinstance(node, ast.ClassDef) and node.bases
                 for method in node.body if isinstance(method, ast.FunctionDef)}
    for node in nodes_of(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node not in inherited:
            yield node.name
        elif isinstance(node, ast.arg) and not on_the_bus:
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_names_of_the_product_contain_no_meaningless_words():
    """Rule 3 of the style: names contain no word of :data:`_MEANINGLESS`."""
    wrong = {f"{path}: {name}" for path, tree in parsed("nova") for name in names_of(path, tree)
             if _MEANINGLESS.intersection(name.lower().split("_"))}
    assert not wrong


def test_import_aliases_are_unambiguous():
    """An alias stands for a single module and is not the name of another module."""
    names = {}
    for _path, tree in parsed("nova"):
        for node in nodes_of(tree):
            for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                module = f"{node.module}.{alias.name}"
                if alias.asname not in (None, alias.name) and module.startswith("nova"):
                    names.setdefault(alias.asname, set()).add(module)
    modules = {path.stem for path in SOURCES if path.relative_to(ROOT).parts[0] == "nova"}
    assert len(names) > 10
    assert {name: found for name, found in names.items() if len(found) > 1 or name in modules} == {}


def test_the_glossary_has_at_most_twenty_entries():
    lines = (ROOT / "doc/glossary.md").read_text().splitlines()
    assert 10 < sum(line.startswith("| ") for line in lines) - 1 <= 20


def test_doc_routes_lists_module_and_test_of_every_operation():
    kept = route_table.TABLE.read_text()
    assert kept == route_table.document(kept), "run python -m tools.route_table"
    assert "| none |" not in kept, "an operation that no test requests"


def test_unserved_operations_equal_the_list_of_pending_operations():
    """New operations are removed from the list; operations that are no longer served must not be added."""
    waiting = {one.name for one in route_table.operations() if route_table.state_of(one) == route_table.MISSING}
    assert waiting == NOT_SERVED


def test_doc_security_tests_references_existing_tests():
    """Every security guarantee names its tests; a renamed test must be renamed in the document."""
    lines = [line for line in (ROOT / "doc/security-tests.md").read_text().splitlines()
             if line.startswith("| ") and line != "| guarantee | tests |"]
    named = {line: re.findall(r"`(tests/\S+\.py)::(test_\w+)`", line) for line in lines}
    assert not [line for line, found in named.items() if len(found) < max(1, line.count("`") // 2)]
    missing = {f"{path}::{name}" for found in named.values() for path, name in found
               if not (ROOT / path).is_file() or f"\ndef {name}(" not in (ROOT / path).read_text()}
    assert not missing
    assert {line[2:].partition(":")[0] for line in lines} == {
        *(f"A{number}" for number in range(1, 16)), *"BCDE", "novad"}
