#!/usr/bin/env bash
# Installs what the tests need (once), then runs linters and tests: the README's second command.
#   tools/run-tests.sh unit       one kind: lint, unit, functional, integration, crash, fuzz, bench (further arguments go to pytest)
#   tools/run-tests.sh changed    linters, and the tests of what differs from HEAD (or from another COMMIT)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${NOVA_TEST_VENV:-.venv}
unset PYTHONDONTWRITEBYTECODE # else each start of a service would compile Nova again
PACKAGES=(python3-venv python3-dev gcc pkg-config libvirt-dev libvirt-daemon libvirt-daemon-driver-qemu
    libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils rabbitmq-server postgresql mariadb-server
    dnsmasq-base nftables iproute2 iputils-ping genisoimage procps
    novnc spice-html5 chromium chromium-driver # what looks at the status page and the consoles
    haproxy nginx-light apache2-bin # front ends of the API and the metadata service
    podman runc netavark aardvark-dns catatonit iptables docker-registry # containers for novad, and where they come from
    busybox-static dropbear-bin e2fsprogs fdisk syslinux syslinux-common mtools cpio kmod) # the guest image

say() { printf '\n=== %s\n' "$*"; }

install_packages() {
    local missing=() package
    for package in "${PACKAGES[@]}"; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" != 0 ]; then
        echo "Not root: these packages are missing, the tests that need them are skipped: ${missing[*]}"
        return
    fi
    say "Installing ${#missing[@]} Debian packages"
    apt-get update -q >/dev/null
    # Tests start the servers they need themselves, on their own ports and directories.
    printf '#!/bin/sh\nexit 101\n' > /usr/sbin/policy-rc.d.nova && chmod +x /usr/sbin/policy-rc.d.nova
    [ -e /usr/sbin/policy-rc.d ] || ln -s policy-rc.d.nova /usr/sbin/policy-rc.d
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
    [ "$(readlink /usr/sbin/policy-rc.d || true)" = policy-rc.d.nova ] && rm /usr/sbin/policy-rc.d
    rm -f /usr/sbin/policy-rc.d.nova
}

install_python() {
    local stamp="$VENV/.stamp"
    if [ ! -e "$stamp" ] || [ setup.cfg -nt "$stamp" ] || [ constraints.txt -nt "$stamp" ]; then
        say "Creating the virtual environment $VENV"
        [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV"
        tools/install-python.sh "$VENV/bin/python" -c constraints.txt -e '.[test,libvirt,postgresql,bench]' 2>&1 |
            grep -v '^WARNING' || true
        "$VENV/bin/python" -c 'import nova, pytest'
        touch "$stamp"
    fi
}

# Chained, because bash ignores errexit in functions whose result is tested.
lint() {
    say "Linters"
    "$VENV/bin/ruff" check nova tests tools devstack && "$VENV/bin/mypy" nova && "$VENV/bin/lint-imports"
}

tests() {
    say "Tests: $*"
    "$VENV/bin/pytest" "$@"
}

# Hundreds of tests wait for the disk more than for anything else, and none of them is about it.
in_memory() { # COMMAND…, with temporary files in memory, if there is enough of it
    local place=/dev/shm free
    free=$(df --output=avail -B1M "$place" 2> /dev/null | tail -n 1) || free=0
    if [ "$(stat -f -c %T "$place" 2> /dev/null)" != tmpfs ] || [ "${free:-0}" -lt 4096 ]; then "$@"; return; fi
    place=$(mktemp -d "$place/nova-tests.XXXXXX")
    chmod 755 "$place"
    local result=0
    TMPDIR=$place "$@" || result=$?
    rm -rf "$place"
    return $result
}

# Tests that start processes, several at a time on few cores: what failed is run once more, alone. Both runs are printed;
# a test that needs the second one is a defect of the test (or of Nova), though not of the change that CI looks at.
crowded() {
    local cache=(-o "cache_dir=.pytest_cache/$(basename "$1")") # of this kind, since others run beside it
    tests "$@" "${cache[@]}" && return
    [ $? = 1 ] || return 2
    say "Once more, alone: what failed"
    "$VENV/bin/pytest" "$@" "${cache[@]}" -n 0 --last-failed --last-failed-no-failures none --maxfail 5
}

# Runs a command while a function runs in the background, whose output follows at the end. Fails if one of them fails.
beside() { # FUNCTION COMMAND…
    local output group result=0
    output=$(mktemp)
    set -m # a process group of its own: a background process of this one would ignore an interrupt
    ("$1") > "$output" 2>&1 < /dev/null &
    set +m
    group=$!
    BACKGROUND+=("$group") OUTPUTS+=("$output")
    "${@:2}" || result=$?
    wait "$group" || result=$?
    cat "$output"
    rm -f "$output"
    return "$result"
}
BACKGROUND=() OUTPUTS=() # process groups, files
stop() {
    local group
    for group in "${BACKGROUND[@]}"; do kill -INT -- "-$group" 2> /dev/null || true; done
    rm -f "${OUTPUTS[@]}"
    exit 130
}
trap stop INT TERM

# Two groups of tests run in parallel, because most tests wait for processes and time-outs as often as for a core. A
# group ends at its first kind of tests that fails. Tests of a file share fixtures, so one process runs them.
in_one_process() {
    beside lint in_memory tests tests/unit -n 3 --dist worksteal --timeout 120 &&
        in_memory crowded tests/functional -n 4 --dist loadfile --no-loadscope-reorder -m 'not slow' &&
        tests tests/fuzz --quick -n 2
}

with_services() {
    crowded tests/integration tests/bench -n 4 --dist loadfile --no-loadscope-reorder -m 'not slow' &&
        crowded tests/crash --quick -n 3 --dist loadfile
}

install_packages
install_python
export PATH="$PWD/$VENV/bin:$PATH"
case "${1:-all}" in
    lint) lint ;;
    unit) in_memory tests tests/unit -n 3 --timeout 120 "${@:2}" ;;
    functional) in_memory tests tests/functional "${@:2}" ;;
    integration) tests tests/integration tests/bench "${@:2}" ;;
    crash) tests tests/crash "${@:2}" ;;
    fuzz) tests tests/fuzz "${@:2}" ;;
    bench) "$VENV/bin/python" -m tools.bench "${@:2}" ;;
    changed) # COMMIT (default: HEAD): linters, and the tests of what differs from the commit
        selected=$("$VENV/bin/python" -m tools.changed_tests "${2:-HEAD}")
        # shellcheck disable=SC2046 # paths without spaces
        beside lint in_memory tests -n 4 --dist loadfile -m 'not slow' $(grep -v ^tests/integration <<< "$selected")
        # shellcheck disable=SC2046
        if grep -q ^tests/integration <<< "$selected"; then
            tests -n 2 --dist loadfile -m 'not slow' $(grep ^tests/integration <<< "$selected")
        fi
        ;;
    all) # without the tests marked slow, which run only by their kind ("run-tests.sh functional")
        beside with_services in_one_process
        ;;
    *) echo "usage: $0 [all|lint|unit|functional|integration|crash|fuzz|bench] [pytest options] | changed [COMMIT]" >&2; exit 2 ;;
esac
