#!/usr/bin/env bash
# Runs tempest's tests of the Compute API against a running cloud and compares with the list of expected passes.
#
#   tools/tempest/run.sh                               fails when a test does, when one of expected-passes.txt does not
#                                                      pass, or one is skipped that skips.txt does not explain
#   tools/tempest/run.sh --update                      rewrites these lists
#   tools/tempest/run.sh REGEX                         only these tests; nothing is compared
#
# The cloud is the one of the OS_* variables of an administrator, or that of devstack/stack.sh in DATA_DIR. TEMPEST_DIR
# keeps the virtual environment and the workspace (default: DATA_DIR/tempest), TEMPEST_WORKERS says how many tests run at
# a time (default: 2), NOVA_SPICE whether there are SPICE consoles (default: what the stack's nova.conf says). What runs
# stands in tests.txt and exclude.txt.
set -euo pipefail

here=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
data=${DATA_DIR:-/opt/stack/nova-data}
home=${TEMPEST_DIR:-$data/tempest}
venv=$home/venv
workspace=$home/workspace
# shellcheck source=/dev/null
if [ -z "${OS_AUTH_URL:-}" ] && [ -r "$data/openrc" ]; then . "$data/openrc"; fi
: "${OS_AUTH_URL:?no openrc in $data: source one of an administrator first}"
# No API request returns this.
NOVA_SPICE=${NOVA_SPICE:-$(sed -n '/^\[spice\]/,/^\[/s/^enabled *= *//p' "$data/etc/nova/nova.conf" 2> /dev/null || true)}
export NOVA_SPICE
# Compiling tempest anew in every process would take longer than many a test.
unset PYTHONDONTWRITEBYTECODE
update='' regex=''
for argument in "$@"; do
    case $argument in
        --update) update=--update ;;
        -*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
        *) regex=$argument ;;
    esac
done

install_tempest() {
    [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
    local wanted
    wanted=$(cat "$here/requirements.txt" "$here"/plugin/*/*.py | sha256sum)
    [ "$(cat "$venv/installed" 2> /dev/null)" = "$wanted" ] && return
    echo "Installing tempest into $venv"
    # pip builds in a copy: nothing is left in this tree.
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

run_tests() { # ARGUMENTS OF tempest run…; failing tests are judged later
    cd "$workspace"
    # TERM from outside has to reach tempest's workers, too.
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
