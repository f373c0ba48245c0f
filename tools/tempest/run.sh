#!/usr/bin/env bash
# Runs tempest's tests of the Compute API against a cloud, and compares the results with expected passes and skips.
#
#   tools/tempest/run.sh             fails if a test fails, if a test in expected-passes.txt does not pass, or if a
#                                    skipped test is not in skips.txt
#   tools/tempest/run.sh --update    rewrites both lists
#   tools/tempest/run.sh REGEX       runs only matching tests, without a comparison
#
# Environment: OS_* of an administrator (default: those of stack.sh in DATA_DIR); TEMPEST_DIR, the directory of the virtual
# environment and workspace (default: DATA_DIR/tempest); TEMPEST_WORKERS, the number of parallel tests (default: 2);
# NOVA_SPICE, True if the cloud has SPICE consoles (default: as in the stack's nova.conf). tests.txt and exclude.txt
# select the tests.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
data=${DATA_DIR:-/opt/stack/nova-data}
home=${TEMPEST_DIR:-$data/tempest}
venv=$home/venv
workspace=$home/workspace
# shellcheck source=/dev/null
if [ -z "${OS_AUTH_URL:-}" ] && [ -r "$data/openrc" ]; then . "$data/openrc"; fi
: "${OS_AUTH_URL:?no openrc in $data: source one of an administrator first}"
# The API does not report whether SPICE is enabled.
NOVA_SPICE=${NOVA_SPICE:-$(sed -n '/^\[spice\]/,/^\[/s/^enabled *= *//p' "$data/etc/nova/nova.conf" 2> /dev/null || true)}
export NOVA_SPICE
# Cache the byte code; otherwise each process would compile tempest again.
unset PYTHONDONTWRITEBYTECODE
update='' regex=''
for argument in "$@"; do
    case $argument in
        --update) update=--update ;;
        -*) sed -n '2,13s/^# \{0,1\}//p' "$0"; exit 2 ;;
        *) regex=$argument ;;
    esac
done

install_tempest() {
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    local wanted
    wanted=$(cat "$here/requirements.txt" "$here"/plugin/*/*.py | sha256sum)
    [ "$(cat "$venv/installed" 2> /dev/null)" = "$wanted" ] && return
    echo "Installing tempest into $venv"
    # Build in a copy: pip leaves files in the source directory.
    cp -r "$here/plugin" "$venv/plugin-source"
    "$venv/bin/pip" install -r "$here/requirements.txt" "$venv/plugin-source" > "$home/pip.log" 2>&1 ||
        { tail "$home/pip.log"; exit 1; }
    rm -rf "$venv/plugin-source"
    echo "$wanted" > "$venv/installed"
}

prepare_workspace() {
    mkdir -p "$home"
    [ -d "$workspace/etc" ] || rm -f "$home/workspaces.yaml"
    [ -d "$workspace/etc" ] || "$venv/bin/tempest" init --name nova --workspace-path "$home/workspaces.yaml" "$workspace"
    mkdir -p "$workspace/logs" "$workspace/locks"
    "$venv/bin/python" "$here/configure.py" "$here/tempest.conf.in" "$workspace/etc/tempest.conf"
}

run_tests() { # ARGUMENT…: run "tempest run ARGUMENT…"; results.py evaluates failures
    cd "$workspace"
    "$venv/bin/tempest" run --concurrency "${TEMPEST_WORKERS:-2}" "$@" || true
}

install_tempest
prepare_workspace
if [ -n "$regex" ]; then
    run_tests --regex "$regex"
    "$venv/bin/stestr" last > /dev/null
else
    run_tests --include-list "$here/tests.txt" --exclude-list "$here/exclude.txt"
    "$venv/bin/stestr" last --subunit | "$venv/bin/python" "$here/results.py" "$here" $update
fi
