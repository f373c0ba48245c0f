#!/usr/bin/env bash
# Builds the container images of the Nova suite from Debian, PyPI and this source tree, and pushes them to a local
# registry. Requires root on Debian 12. Reuses existing layers. Builds of the same commit have the same digests.
#
#   tools/images/build.sh
#
# Environment variables:
#   OUTPUT=/var/lib/nova-images    directory of layers, OCI layout (oci/), Nova's wheel (wheels/), registry data, and the
#                                  platform files of etc/novad with the images' digests (platforms/)
#   REGISTRY=127.0.0.1:5050        registry for the images; started if no server listens there
#   IMAGES="nova-api …"            images to build (default: all of the suite). The federator's are nova-federator, etcd,
#                                  kube-apiserver and kube-controller-manager; the last three need NOVA_K8S_DIR
#   PUSH=True                      False: write the OCI layout only
#   FRESH=False                    True: discard cached layers, to include security updates of Debian and PyPI
#   CHECK=False                    True: build everything again from scratch and compare the digests
#   MIRROR=                        Debian mirror, or a file in the format of sources.list (default: deb.debian.org)
# pip uses the configuration of this machine (PIP_INDEX_URL and so on).
set -euo pipefail

HERE=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
REPO=$(dirname "$(dirname "$HERE")")
OUTPUT=${OUTPUT:-/var/lib/nova-images}
REGISTRY=${REGISTRY:-127.0.0.1:5050}
PUSH=${PUSH:-True}
FRESH=${FRESH:-False}
CHECK=${CHECK:-False}
MIRROR=${MIRROR:-}
PYTHON=/usr/bin/python3 # Debian's, as in the images
# shellcheck source=layers.sh
. "$HERE/layers.sh"
# shellcheck source=images.sh
. "$HERE/images.sh"
# shellcheck source=registry.sh
. "$HERE/registry.sh"

say() { printf '[%3d s] %s\n' "$SECONDS" "$*"; }
die() { printf 'ERROR: %s\n' "$*" >&2; exit 1; }
oci() { "$PYTHON" "$HERE/oci.py" "$@"; }

install_packages() { # install missing packages for building, serving and running images; do not start their services
    local wanted=(ca-certificates git mmdebstrap python3-venv docker-registry)
    local missing=() package policy=/usr/sbin/policy-rc.d
    wanted+=(podman runc netavark aardvark-dns catatonit iptables)
    for package in "${wanted[@]}"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    say "Debian packages: ${missing[*]}"
    if [ ! -e $policy ]; then
        printf '#!/bin/sh\n# temporary file of tools/images/build.sh: forbids to start services\nexit 101\n' > $policy
        chmod 755 $policy
        trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    fi
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq -o DPkg::Lock::Timeout=300 update
    apt-get -qq -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}" > /dev/null
    # After a reboot, the package's own registry would listen on all addresses.
    case " ${missing[*]} " in *' docker-registry '*) ! has_systemd || systemctl -q disable docker-registry ;; esac
    rm -f $policy
    trap - EXIT
}

has_systemd() { [ -d /run/systemd/system ]; }

check_options() {
    [ "$(id -u)" = 0 ] || die "run this script as root: it creates file systems with owners and devices"
    local name image
    for name in PUSH FRESH CHECK; do
        case "${!name}" in True | False) ;; *) die "$name=${!name}: choose True or False" ;; esac
    done
    case "$OUTPUT" in /*/* | /[a-z]*) ;; *) die "OUTPUT=$OUTPUT: must be an absolute path" ;; esac
    case "$REGISTRY" in 127.*:[0-9]* | localhost:[0-9]*) ;; *) die "REGISTRY=$REGISTRY: must be HOST:PORT on loopback" ;; esac
    for image in ${IMAGES:-}; do
        grep -qw -- "$image" <<< "$ALL_IMAGES $FEDERATOR_IMAGES" ||
            die "IMAGES=$image: unknown image; choose from $ALL_IMAGES $FEDERATOR_IMAGES"
        ! grep -qw -- "$image" <<< "$KUBERNETES_IMAGES" || [ -x "$KUBERNETES_PROGRAMS/$image" ] ||
            die "IMAGES=$image: $KUBERNETES_PROGRAMS has no such program; run tools/kubernetes/build.sh"
    done
    IMAGES=${IMAGES:-$ALL_IMAGES}
}

build() {
    mkdir -p "$OUTPUT/layers" "$OUTPUT/oci/blobs/sha256" "$OUTPUT/logs"
    exec 9> "$OUTPUT/lock"
    flock -n 9 || { say "waiting for another build"; flock 9; }
    WORK=$(mktemp -d "$OUTPUT/work.XXXXXX")
    trap stop_jobs EXIT
    [ "$FRESH" = False ] || rm -rf "$OUTPUT/layers" "$OUTPUT/wheels"
    mkdir -p "$OUTPUT/layers"
    [ -e "$OUTPUT/layers/base.stamp" ] || say "building all layers, which takes some minutes"
    build_layers
    assemble_images
    prune
}

stop_jobs() {
    local job
    for job in $(jobs -p); do kill -- "-$job" 2> /dev/null || true; done
    rm -rf "$WORK"
}

prune() { # remove blobs of the layout that no image uses
    (cd "$OUTPUT/oci/blobs/sha256" && comm -23 <(ls | sort) <(used_blobs | sort -u) | xargs -r rm -f)
}

used_blobs() {
    sed -n 's/.*"digest": "sha256:\([0-9a-f]*\)".*/\1/p' "$OUTPUT"/oci/index.json
    sed -n 's/.*"digest": "sha256:\([0-9a-f]*\)".*/\1/p' "$OUTPUT/oci/index.json" |
        xargs grep -oh 'sha256:[0-9a-f]\{64\}' "$OUTPUT"/layers/*.json | cut -d: -f2
}

check_reproducible() { # build again from scratch, and compare the digests
    local other
    other=$(mktemp -d "$OUTPUT/check.XXXXXX")
    say "building again from scratch"
    if ! OUTPUT=$other PUSH=False CHECK=False FRESH=False IMAGES=$IMAGES "$HERE/build.sh" \
        > "$OUTPUT/logs/check.log" 2>&1 9>&-; then
        tail -n 20 "$OUTPUT/logs/check.log" >&2
        rm -rf "$OUTPUT/logs/check"
        mv "$other/logs" "$OUTPUT/logs/check"
        rm -rf "$other"
        die "the second build failed; its logs are in $OUTPUT/logs/check"
    fi
    local result=0
    diff <(digests_of "$OUTPUT") <(digests_of "$other") || result=1
    [ $result = 1 ] || rm -rf "$other"
    [ $result = 0 ] || die "the second build has different digests; its output is in $other"
    say "both builds have the same digests"
}

main() {
    check_options
    install_packages
    build
    if [ "$PUSH" = True ]; then
        start_registry
        push_images
        oci pin "$VERSION" "$OUTPUT/platforms" "$REPO"/etc/novad/nova*.yaml --layout "$OUTPUT/oci"
    fi
    [ "$CHECK" = False ] || check_reproducible
    [ "$PUSH" = False ] || say "platform files with the digests of these images: $OUTPUT/platforms"
    say "$(wc -w <<< "$IMAGES") images of version $VERSION: $OUTPUT/oci ($(du -sh "$OUTPUT/oci" | cut -f1))"
}

main
