"""The rules of the house, as the linters of a fresh clone would see them."""

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
# First words of docstrings that do not name what the code does or is.
_VAGUE = re.compile(
    r"(what|whether|how|why|where|when|which|who|whom|whose|that|this|these|those|it|its|they|their|them|he|she|his|her|"
    r"of|for|with|without|in|on|at|by|from|to|into|as|if|while|after|before|until|all|one|each|every|everything|nothing|"
    r"none|no|nobody|somebody|not|so|is|are|was|has|have|there|here|both|others|another|some|any|only|also)[\s,.:;]",
    re.IGNORECASE)

# The same for tests, whose texts may count: "Every list ...", "Two guests ...".
_VAGUE_IN_TESTS = re.compile(
    r"(what|whether|how|why|where|when|which|who|whom|whose|it|its|they|their|them|he|she|his|her|nobody|somebody|none|"
    r"of|for|with|without|in|on|at|by|from|to|as|if|while|also|not|both)[\s,.:;]", re.IGNORECASE)
# Words of names that could stand for anything.
_MEANINGLESS = {"told", "tell", "tells", "telling", "look", "looks", "looked", "looking", "known", "found", "one",
                "each", "kept", "gone", "asked", "whoever"}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text())


def imports_of(config):
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    return subprocess.run([sys.executable, "-c", script, config], cwd=ROOT, capture_output=True, text=True,
                          timeout=300, check=False)


def test_the_four_rules_and_the_floors_hold():
    result = imports_of(ROOT / "pyproject.toml")
    assert result.returncode == 0, result.stdout
    assert "20 kept, 0 broken" in result.stdout


def test_a_broken_rule_would_be_noticed(tmp_path):
    """The contract on SQL is broken if the conductor is not among its allowed importers."""
    text = (ROOT / "pyproject.toml").read_text()
    broken = text.replace('["nova.db", "nova.conductor", "nova.cmd"]', '["nova.db", "nova.cmd"]', 1)
    assert broken != text
    config = tmp_path / "pyproject.toml"
    config.write_text(broken)
    result = imports_of(config)
    assert result.returncode != 0
    assert "1 broken" in result.stdout, result.stdout


@pytest.mark.parametrize("package", ["api", "scheduler", "compute", "telemetry"])
def test_loading_a_service_loads_no_database(package):
    """The contracts hold not only for source files but also for the modules that a process loads."""
    modules = [f"nova.{path.relative_to(ROOT / 'nova').with_suffix('').as_posix().replace('/', '.')}"
               for path in (ROOT / "nova" / package).rglob("*.py") if path.stem not in ("__init__", "wsgi")]
    script = (f"import importlib, sys, warnings; warnings.simplefilter('ignore'); import nova.bus\n"
              f"for name in {modules!r}: importlib.import_module(name)\n"
              "print([name for name in ('nova.db', 'sqlalchemy', 'alembic', 'libvirt') if name in sys.modules])")
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
                           check=True)
    assert found.stdout.strip() == "[]"


def test_loading_the_api_loads_nothing_that_makes_keys():
    """Eight megabytes in each worker, for what few ask for."""
    script = ("import sys, warnings; warnings.simplefilter('ignore'); import nova.cmd.api_workers\n"
              "print('nova.api.app' in sys.modules, 'cryptography' in sys.modules)")
    found = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120,
                           check=True)
    assert found.stdout.split() == ["True", "False"]


def test_no_file_is_two_files():
    long = {str(path.relative_to(ROOT)): lines for path in SOURCES
            if (lines := len(path.read_text().splitlines())) > HARD_LIMIT}
    assert not long, f"more than {HARD_LIMIT} lines: split by idea"


def test_no_folder_has_more_than_25_modules():
    """Revisions of the schema are numbered, not grouped."""
    folders = collections.Counter(path.parent for path in SOURCES if path.suffix == ".py"
                                  and path.name != "__init__.py" and path.parent.name != "versions")
    assert {str(folder.relative_to(ROOT)): count for folder, count in folders.items() if count > 25} == {}


# Modules that may read the wall clock of their machine, and what for. All others decide by the database's clock
# (nova.db.sql.clock, Control.now) or by a monotonic one.
WALL_CLOCK = {
    "nova/objects/base.py": "defines utcnow",
    "nova/db/sql/clock.py": "the clock of a process that has not asked the database",
    "nova/bus/deadlines.py": "when a message was sent, for metrics",
    "nova/bus/message_signing.py": "the age of a signed message between machines, whose clocks an operator keeps alike",
    "nova/telemetry/metrics.py": "durations for histograms",
    "nova/telemetry/worker_stats.py": "when a worker reported, for the status page of the same machine",
    "nova/notifications/messages.py": "the timestamp of a notification",
    "nova/metadata/tree.py": "the date by which metadata versions are listed",
    "nova/compute/monitors/cpu.py": "when a sample was taken",
    "nova/virt/images/imagecache.py": "ages of files, whose times are of the same clock; an image can be fetched again",
    "nova/volume/local.py": "ages of files, whose times are of the same clock; only a day after an upload has ended",
    "nova/virt/fake/guests.py": "shown boot times of fake guests",
    "nova/virt/fake/diagnostics.py": "shown uptime",
    "nova/virt/libvirt/diagnostics.py": "shown uptime",
    "nova/image/directory.py": "shown times of images",
    "nova/api/compute/accounts/usage_audit_log.py": "the default period of a report",
    "nova/api/compute/accounts/usages.py": "the default period of a report",
    "nova/api/keys.py": "validity of a certificate, which others judge by their wall clocks",
    "nova/cli/login.py": "expiry of tokens, which Keystone states by the wall clock",
    "nova/cli/platform/show.py": "shown uptime",
    "nova/cli/resources/usage.py": "the default period of a report",
}


def test_decisions_do_not_depend_on_the_wall_clock_of_a_machine(capsys):
    """A server that is confirmed, reclaimed or offloaded since a conductor's clock is wrong does not come back."""
    reads = re.compile(r"\b(utcnow\(\)|utcnow\b(?=[,)])|time\.time\(\)|datetime\.now\(|date\.today\(|func\.now\()")
    apart = {ROOT / "nova" / product for product in ("novad", "federator", "common")}  # no database
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "nova").rglob("*.py")
             if not apart & set(path.parents) and any(
                 reads.search(line) for line in path.read_text().splitlines() if "import" not in line)}
    assert found == set(WALL_CLOCK), "use nova.db.sql.clock, Control.now or time.monotonic; or give a reason here"
    with capsys.disabled():
        print(f"\n{len(found)} modules read the wall clock, none for a decision about servers")


def test_text_becomes_an_ip_address_in_one_place():
    """Elsewhere it might keep a zone, in which a user may write anything."""
    read = re.compile(r"\bipaddress\.(ip_(address|network|interface)|IPv6(Address|Network|Interface))\((?!\()")
    found = [f"{path.relative_to(ROOT)}:{number}"
             for path in set((ROOT / "nova").rglob("*.py")) - {ROOT / "nova/common/plain_ip.py"}
             for number, line in enumerate(path.read_text().splitlines(), 1)
             if read.search(line)]
    assert not found, "nova/common/plain_ip.py"


def patched_attributes(path):
    """Yield the attributes of the product that a test assigns, as (dotted name of the owner, attribute)."""
    imported, nodes = {}, list(ast.walk(tree_of(path)))
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nova"):
            imported.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in nodes:
        if (isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name)
                and node.value.id in imported):
            yield imported[node.value.id], node.attr


def test_tests_replace_only_attributes_that_exist():
    """An assignment to an attribute that was renamed changes nothing, and says nothing."""
    patched = {pair for path in SOURCES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == "tests"
               for pair in patched_attributes(path)}
    assert patched
    assert [pair for pair in patched if not hasattr(pkgutil.resolve_name(pair[0]), pair[1])] == []


def test_nothing_is_left_for_later():
    # (One of them, in quotes, is a value of the EC2 tree.)
    marker = re.compile(r"(?<!\")\b(TO" r"DO|FIX" r"ME)\b(?!\")")
    found = [f"{path.relative_to(ROOT)}:{number}" for path in SOURCES
             for number, line in enumerate(path.read_text().splitlines(), 1) if marker.search(line)]
    assert not found


# What upstream serves and this one does not yet: the list only shrinks.
NOT_SERVED: set[str] = set()


def docstrings(path):
    for node in ast.walk(tree_of(path)):
        if (isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module))
                and (text := ast.get_docstring(node))):
            yield getattr(node, "name", path.stem), text


def test_docstrings_begin_with_a_verb_or_a_noun():
    """Rule 2 of the style: the first word names an effect or a thing. Those of tests may explain the test's name."""
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
    """Yield the names that a module gives to functions, arguments, variables and attributes.

    Not those that others give: methods of classes with a base, and arguments of calls on the bus.
    """
    on_the_bus = path.parts[:2] == ("nova", "rpcapi") or path.parts[:3] == ("nova", "conductor", "endpoints")
    inherited = {method for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases
                 for method in node.body if isinstance(method, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node not in inherited:
            yield node.name
        elif isinstance(node, ast.arg) and not on_the_bus:
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def test_names_of_the_product_say_what_they_stand_for():
    """Rule 3 of the style: a name has none of the words that could stand for anything."""
    wrong = {f"{path}: {name}" for path, tree in parsed("nova") for name in names_of(path, tree)
             if _MEANINGLESS.intersection(name.lower().split("_"))}
    assert not wrong


def test_an_alias_stands_for_one_module():
    """The name by which an import calls a module is the name of no other module."""
    names = {}
    for _path, tree in parsed("nova"):
        for node in ast.walk(tree):
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


def test_doc_routes_says_where_each_operation_is_and_its_test():
    kept = route_table.TABLE.read_text()
    assert kept == route_table.document(kept), "run python -m tools.route_table"
    assert "| none |" not in kept, "an operation that no test asks for"


def test_every_operation_is_served_or_on_the_list_of_those_that_wait():
    """An operation that has come is taken off the list; one that is lost is not put on it."""
    waiting = {one.name for one in route_table.operations() if route_table.state_of(one) == route_table.MISSING}
    assert waiting == NOT_SERVED


def test_doc_security_tests_names_tests_that_there_are():
    """Each promise has a test; a renamed test must be renamed there."""
    lines = [line for line in (ROOT / "doc/security-tests.md").read_text().splitlines()
             if line.startswith("| ") and line != "| promise | tests |"]
    named = {line: re.findall(r"`(tests/\S+\.py)::(test_\w+)`", line) for line in lines}
    assert not [line for line, found in named.items() if len(found) < max(1, line.count("`") // 2)]
    missing = {f"{path}::{name}" for found in named.values() for path, name in found
               if not (ROOT / path).is_file() or f"\ndef {name}(" not in (ROOT / path).read_text()}
    assert not missing
    assert {line[2:].partition(":")[0] for line in lines} == {
        *(f"A{number}" for number in range(1, 16)), *"BCDE", "novad"}
