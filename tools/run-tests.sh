#!/usr/bin/env bash
# Installs the requirements of the tests (once), then runs linters and tests.
#   tools/run-tests.sh                     linters and all tests that are not marked slow
#   tools/run-tests.sh KIND [ARGUMENT…]    KIND: lint, unit, functional, integration, federator, crash, fuzz, bench
#                                          (arguments: pytest)
#   tools/run-tests.sh changed [COMMIT]    linters, and the tests of files that differ from COMMIT (default: HEAD)
set -euo pipefail
cd "$(dirname "$0")/.."

VENV=${NOVA_TEST_VENV:-.venv}
# Debian's Python is compiled with profile-guided optimization: tests take less CPU than with one that pyenv has compiled.
PYTHON=/usr/bin/python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || PYTHON=python3
unset PYTHONDONTWRITEBYTECODE # without byte code, each start of a service would compile all modules
BUILD_PACKAGES=(python3-venv python3-dev gcc pkg-config libvirt-dev) # to build Python packages
PACKAGES=(libvirt-daemon libvirt-daemon-driver-qemu libvirt-daemon-driver-lxc libvirt-daemon-system libvirt-clients qemu-system-x86 qemu-utils ovmf swtpm swtpm-tools
    rabbitmq-server postgresql pgbouncer mariadb-server
    dnsmasq-base nftables iproute2 iputils-ping genisoimage procps
    novnc spice-html5 chromium chromium-driver # browser tests of the status page and the consoles
    haproxy nginx-light apache2-bin # front ends of the API and the metadata service
    podman runc netavark aardvark-dns catatonit iptables docker-registry # containers and registry for novad
    user-mode-linux # guests of the driver uml
    golang-go golang-github-vmware-govmomi-dev # the vCenter simulator of the driver vmware (82 MB to download)
    busybox-static dropbear-bin e2fsprogs fdisk syslinux syslinux-common mtools cpio kmod # the guest image
    libfaketime # agents with wrong clocks
    rsync jq make xz-utils patch debian-archive-keyring) # the build of Kubernetes

say() { printf '\n=== %s\n' "$*"; }

# PACKAGE…: install the packages that are missing.
install_packages() {
    local missing=() package
    for package; do
        dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
    done
    [ ${#missing[@]} -eq 0 ] && return
    if [ "$(id -u)" != 0 ]; then
        echo "Not root, so these packages are not installed, and tests that need them are skipped: ${missing[*]}"
        return
    fi
    say "Installing ${#missing[@]} Debian packages"
    apt-get update -q >/dev/null
    # Do not start the services of the packages: tests start their own instances with their own ports and directories.
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
        [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
        tools/install-python.sh "$VENV/bin/python" -c constraints.txt -e '.[test,libvirt,vmware,postgresql,bench]' 2>&1 |
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

# COMMAND…: run with TMPDIR in memory if 4 GiB are free there, because disk writes take most of the time of many tests.
in_memory() {
    local directory=/dev/shm free
    free=$(df --output=avail -B1M "$directory" 2> /dev/null | tail -n 1) || free=0
    if [ "$(stat -f -c %T "$directory" 2> /dev/null)" != tmpfs ] || [ "${free:-0}" -lt 4096 ]; then "$@"; return; fi
    directory=$(mktemp -d "$directory/nova-tests.XXXXXX")
    chmod 755 "$directory"
    local result=0
    TMPDIR=$directory "$@" || result=$?
    rm -rf "$directory"
    return $result
}

# PATH… [OPTION…]: run tests in parallel, then failed tests again one by one, because a busy machine causes timeouts. A test
# that fails only in the parallel run is a defect of the test or of Nova, but does not fail CI.
tests_with_retry() {
    local cache=(-o "cache_dir=.pytest_cache/$(basename "$1")") # one per kind of tests, because two kinds run in parallel
    tests "$@" "${cache[@]}" && return
    [ $? = 1 ] || return 2
    say "Running the failed tests again, one by one"
    "$VENV/bin/pytest" "$@" "${cache[@]}" -n 0 --last-failed --last-failed-no-failures none --maxfail 5
}

# FUNCTION COMMAND…: run the function in the background and the command in the foreground, then print the output of the
# function. Fails if the function or the command fails.
in_parallel() {
    local output group result=0
    output=$(mktemp)
    set -m # its own process group: without job control, background processes ignore SIGINT
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
BACKGROUND=() OUTPUTS=() # process groups, output files
stop() {
    local group
    for group in "${BACKGROUND[@]}"; do kill -INT -- "-$group" 2> /dev/null || true; done
    rm -f "${OUTPUTS[@]}"
    exit 130
}
trap stop INT TERM

# Builds the programs of Kubernetes unless the cache has them (minutes, once per machine), while other tests run.
build_kubernetes() {
    nice -n 10 tools/kubernetes/build.sh
}

# FILE…: a single process runs tests of the federator, because they share clusters.
federator() {
    in_memory tests_with_retry "${@/#/tests/integration/federator/}" -m 'not slow'
}

# Three groups run in parallel, because many tests wait for processes and timeouts, and crash tests do little else. A group
# stops after its first kind of tests that fails. One process runs all tests of a file, because they share fixtures.
first_group() {
    in_parallel lint in_memory tests_with_retry tests/unit -n 3 --dist worksteal --timeout 300 &&
        in_memory tests_with_retry tests/functional -n 5 --dist loadfile --no-loadscope-reorder -m 'not slow'
}

second_group() {
    tests_with_retry tests/integration tests/bench --ignore tests/integration/federator -n 4 --dist loadfile \
        --no-loadscope-reorder -m 'not slow'
}

third_group() {
    tests_with_retry tests/crash --quick -n 2 --dist loadfile && tests tests/fuzz --quick -n 2
}

# Tests of the federator take 15 minutes in all: they run if NOVA_BUILD_KUBERNETES is set, which also builds Kubernetes.
# Otherwise only test_placement.py runs, whose tests are skipped if the programs of Kubernetes are missing.
first_group_and_federator() {
    if [ -n "${NOVA_BUILD_KUBERNETES:-}" ]; then
        in_parallel build_kubernetes first_group && federator .
    else
        first_group && federator test_placement.py
    fi
}

install_packages "${BUILD_PACKAGES[@]}"
install_packages "${PACKAGES[@]}" &
packages=$!
install_python
wait "$packages"
export PATH="$PWD/$VENV/bin:$PATH"
case "${1:-all}" in
    lint) lint ;;
    unit) in_memory tests tests/unit -n 3 --timeout 300 "${@:2}" ;;
    functional) in_memory tests tests/functional "${@:2}" ;;
    integration) tests tests/integration tests/bench --ignore tests/integration/federator "${@:2}" ;;
    federator) build_kubernetes && in_memory tests tests/unit/federator tests/integration/federator "${@:2}" ;;
    crash) tests tests/crash "${@:2}" ;;
    fuzz) tests tests/fuzz "${@:2}" ;;
    bench) "$VENV/bin/python" -m tools.bench "${@:2}" ;;
    changed)
        selected=$("$VENV/bin/python" -m tools.changed_tests "${2:-HEAD}")
        # shellcheck disable=SC2046 # paths without spaces
        in_parallel lint in_memory tests -n 4 --dist loadfile -m 'not slow' $(grep -v ^tests/integration <<< "$selected")
        # shellcheck disable=SC2046
        if grep -q ^tests/integration <<< "$selected"; then
            tests -n 2 --dist loadfile -m 'not slow' $(grep ^tests/integration <<< "$selected")
        fi
        ;;
    all) in_parallel third_group in_parallel second_group first_group_and_federator ;; # other kinds run slow tests, too
    *)
        echo "usage: $0 [all|lint|unit|functional|integration|federator|crash|fuzz|bench] [pytest options] | changed [COMMIT]" >&2
        exit 2
        ;;
esac
