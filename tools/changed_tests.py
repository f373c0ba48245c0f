"""Print the tests of a change: ``python -m tools.changed_tests [COMMIT]`` (tools/run-tests.sh changed).

The change consists of the files that differ from COMMIT (default: HEAD) and of new files. Its tests are:
- changed tests;
- unit tests that import a changed module, or a module that imports a changed module;
- functional and integration tests in the folders that ``_GROUPS`` lists for a changed module;
- the tests of the house rules (``_ALWAYS``).
"""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys
from collections.abc import Iterable, Iterator

import grimp

ROOT = pathlib.Path(__file__).parents[1]
_ALWAYS = "tests/unit/test_house.py"
# Part of the name of a module -> folders of its functional and integration tests.
_GROUPS = {
    ".servers": ["tests/functional/servers"], ".operations": ["tests/functional/servers", "tests/unit/engine"],
    ".hosts": ["tests/functional/hosts"], ".scheduler": ["tests/functional/hosts"],
    ".networks": ["tests/functional/networks"], ".network.linux": ["tests/integration/network"],
    ".network.neutron": ["tests/functional/networks"], ".volumes": ["tests/functional/volumes"],
    ".volume": ["tests/functional/volumes"], ".share": ["tests/functional/volumes/test_shares.py"],
    ".accounts": ["tests/functional/api"], ".api": ["tests/functional/api"], ".policies": ["tests/functional/api"],
    ".notifications": ["tests/functional/notifications"], ".virt.libvirt": ["tests/integration/libvirt"],
    ".virt.fake": ["tests/functional/servers"], ".bus": ["tests/integration/bus"], ".db": ["tests/integration/db"],
    ".metadata": ["tests/integration/metadata"], ".guest_metadata": ["tests/integration/metadata"],
    ".novad": ["tests/unit/novad", "tests/functional/novad"], ".cli": ["tests/unit/cli", "tests/functional/cli"],
    ".common": ["tests/unit/common", "tests/unit/novad"], ".saga": ["tests/unit/engine"],
    ".federator": ["tests/unit/federator", "tests/integration/federator"],
    ".console": ["tests/functional/servers/test_consoles.py", "tests/functional/servers/test_console_proxies.py"],
}


def changed_files(commit: str) -> list[str]:
    """Return the paths of files that differ from the commit, and of new files."""
    commands = (["git", "diff", "--name-only", "--diff-filter=d", commit],
                ["git", "ls-files", "-o", "--exclude-standard"])
    return sorted({line for command in commands for line in subprocess.run(
        command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()})


def tests_of(files: Iterable[str]) -> list[str]:
    """Return the paths of the tests of changed files."""
    files = list(files)
    selected = {file for file in files if file.startswith("tests/") and pathlib.Path(file).name.startswith("test_")}
    changed = {_module(file) for file in files if file.startswith("nova/") and file.endswith(".py")}
    affected = changed | _importers(changed)
    for test in sorted((ROOT / "tests/unit").rglob("test_*.py")):
        if affected & set(_imports(test)):
            selected.add(str(test.relative_to(ROOT)))
    for module in changed:
        for part, folders in _GROUPS.items():
            if f"{part}." in f"{module.removeprefix('nova')}.":
                selected.update(folders)
    return sorted(test for test in selected | {_ALWAYS} if not any(test.startswith(f"{other}/") for other in selected))


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _importers(modules: set[str]) -> set[str]:
    graph = grimp.build_graph("nova")
    return {importer for module in modules & graph.modules
            for importer in graph.find_modules_that_directly_import(module)}


def _imports(test: pathlib.Path) -> Iterator[str]:
    """Yield the modules that a test imports; for "from a import b" both a and a.b."""
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    print("\n".join(tests_of(changed_files(sys.argv[1] if len(sys.argv) > 1 else "HEAD"))))
