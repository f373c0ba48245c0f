# shellcheck shell=bash
# Layers. The function layer_NAME writes $WORK/NAME.tar. A layer is rebuilt if its function or its inputs changed.
#
#   base        Debian with Python, and the accounts of all services
#   python      /opt/nova: requirements of Nova from PyPI   nova      Nova itself, on top of the layer python
#   services    /opt/services: Keystone and Glance          database, rabbitmq, memcached, compute, consoles: from Debian
#   federator   /opt/nova: the federator with its requirements alone
#   etcd, kube-apiserver, kube-controller-manager: programs of tools/kubernetes/build.sh

PACKAGES=(ca-certificates python3 tzdata)
FEDERATOR_PACKAGES=(aiohttp cryptography msgspec prometheus_client PyYAML zstandard)
KUBERNETES_PROGRAMS=${NOVA_K8S_DIR:-$HOME/.cache/nova-k8s}/bin
EXTRAS=cinder,cli,keys,otel,signatures
# Timestamp of all layers except nova. It is constant, so that releases share these layers.
LAYERS_EPOCH=1577836800

build_layers() {
    local wanted job jobs=()
    wanted=$(for image in $IMAGES; do layers_of "$image"; done | tr ' ' '\n' | awk 'NF && !seen[$0]++')
    layer base
    start_job nova python nova federator
    start_job services services
    start_job debian database rabbitmq memcached compute consoles
    start_job kubernetes $KUBERNETES_IMAGES
    for job in "${jobs[@]}"; do
        wait "${job#*:}" || {
            grep -v '^WARNING' "$OUTPUT/logs/${job%:*}.log" | tail -n 20 >&2
            die "building ${job%:*} failed; see $OUTPUT/logs/${job%:*}.log"
        }
    done
}

start_job() { # NAME LAYER…: build the layers that are in $wanted one by one, in a background job
    local name=$1 layer chosen=()
    shift
    for layer in "$@"; do
        ! grep -qx "$layer" <<< "$wanted" || chosen+=("$layer")
    done
    [ ${#chosen[@]} -gt 0 ] || return 0
    set -m # its own process group, so that stop_jobs can stop all processes of the job
    (for layer in "${chosen[@]}"; do layer "$layer"; done) 2> "$OUTPUT/logs/$name.log" 9>&- &
    set +m
    jobs+=("$name:$!")
}

layer() { # NAME: build a layer unless it is up to date; NAME.json is its descriptor, NAME.stamp a hash of its inputs
    local name=$1 stamp tar=$WORK/$1.tar
    stamp=$(stamp_of "$name")
    [ "$(cat "$OUTPUT/layers/$name.stamp" 2> /dev/null)" != "$stamp" ] || return 0
    rm -f "$OUTPUT/layers/$name.stamp"
    local begun=$SECONDS
    SOURCE_DATE_EPOCH=$(epoch_of "$name")
    export SOURCE_DATE_EPOCH
    "layer_$name" "$tar" 1>&2
    oci compress "$tar" --layout "$OUTPUT/oci" > "$OUTPUT/layers/$name.json"
    rm -f "$tar"
    printf '%s' "$stamp" > "$OUTPUT/layers/$name.stamp"
    local size
    size=$(sed 's/.*"size": \([0-9]*\).*/\1/' "$OUTPUT/layers/$name.json")
    say "layer $name: $((SECONDS - begun)) s, $(numfmt --to=iec "$size")"
}

stamp_of() { # LAYER: print a hash of its function and inputs
    {
        case $1 in
            base) declare -f layer_base debootstrap ;;
            python | nova | services) declare -f "layer_$1" fetch_wheels install_wheels nova_wheel compile ;;
            federator) declare -f layer_federator fetch_wheels install_wheels && echo "${FEDERATOR_PACKAGES[*]}" ;;
            etcd | kube-*) declare -f "layer_$1" kubernetes_layer ;;
            *) declare -f "layer_$1" debian_layer debootstrap ;;
        esac
        echo "${PACKAGES[*]} $EXTRAS $MIRROR $(epoch_of "$1")"
        [ "$1" = base ] || cat "$OUTPUT/layers/base.stamp"
        if [ "$1" = nova ]; then cat "$OUTPUT/layers/python.stamp"; fi
        cat "$HERE/oci.py"
        if declare -F "inputs_of_$1" > /dev/null; then (cd "$REPO" && "inputs_of_$1" | sources | xargs -0r sha256sum); fi
    } | sha256sum | cut -c1-16
}

epoch_of() { # LAYER: print its timestamp; for nova: the time of the last commit of its inputs
    local time=$LAYERS_EPOCH
    [ "$1" != nova ] || time=$(git -C "$REPO" log -1 --format=%ct -- $(inputs_of_nova) 2> /dev/null) || true
    echo "${time:-$LAYERS_EPOCH}"
}

sources() { # print the source files below the paths on standard input, separated by NUL
    xargs -d '\n' -I{} find {} -type f ! -name '*.pyc' ! -path '*.egg-info/*' -print0 | LC_ALL=C sort -z
}

# --- Debian ----------------------------------------------------------------------------------------
debootstrap() { # ARGUMENT…: mmdebstrap without documentation and other unused files
    local directory filter=()
    for directory in man doc info locale lintian; do
        filter+=("--dpkgopt=path-exclude=/usr/share/$directory/*")
    done
    mmdebstrap --quiet "${filter[@]}" --dpkgopt='path-include=/usr/share/doc/*/copyright' "$@"
}

layer_base() { # OUT
    debootstrap --variant=minbase --include="$(IFS=,; echo "${PACKAGES[*]}")" --customize-hook="$HERE/hooks/base" \
        --customize-hook="$HERE/hooks/clean" bookworm "$WORK/debian.tar" $MIRROR
    mv "$WORK/debian.tar" "$OUTPUT/layers/debian.tar"
    oci subtract - "$OUTPUT/layers/debian.tar" --tar "$1"
}

debian_layer() { # NAME OUT PACKAGE…: write the files that the packages add to the base layer
    local name=$1 out=$2 base="$OUTPUT/layers/debian.tar" hooks=()
    shift 2
    [ ! -e "$HERE/hooks/$name" ] || hooks=(--customize-hook="$HERE/hooks/$name")
    # tar instead of mmdebstrap's tar-in, which uses pipes and sometimes fails on a busy machine
    debootstrap --variant=custom \
        --setup-hook="tar -C \"\$1\" --numeric-owner --xattrs-include='*' --exclude='./dev/?*' -xpf '$base'" \
        --include="$(IFS=,; echo "$*")" "${hooks[@]}" --customize-hook="$HERE/hooks/clean" bookworm "$WORK/full.tar" $MIRROR
    oci subtract "$base" "$WORK/full.tar" --tar "$out"
    rm -f "$WORK/full.tar"
}

inputs_of_base() { printf '%s\n' tools/images/hooks/base tools/images/hooks/clean; }

inputs_of_database() { printf '%s\n' tools/images/hooks/database tools/images/hooks/clean; }

inputs_of_compute() { echo tools/images/hooks/compute; }

inputs_of_consoles() { echo tools/images/hooks/consoles; }

layer_database() { debian_layer database "$1" mariadb-server; }

layer_rabbitmq() { debian_layer rabbitmq "$1" rabbitmq-server; }

layer_memcached() { debian_layer memcached "$1" memcached; }

layer_compute() {
    debian_layer compute "$1" python3-libvirt libvirt-clients qemu-utils genisoimage iproute2 nftables dnsmasq-base procps \
        openssh-client
}

layer_consoles() { debian_layer consoles "$1" ca-certificates; }

# --- Python ----------------------------------------------------------------------------------------
builder() { # ARGUMENT…: run pip of a separate virtual environment, which the first caller creates
    (flock 8 && { [ -x "$WORK/venv/bin/pip" ] || "$PYTHON" -m venv "$WORK/venv"; }) 8> "$WORK/venv.lock"
    "$WORK/venv/bin/pip" "$@"
}

fetch_wheels() { # DIRECTORY REQUIREMENT…: download wheels, or build them if PyPI has only sources
    local target=$1
    shift
    mkdir -p "$target"
    builder wheel -q --prefer-binary --use-pep517 -c "$REPO/constraints.txt" -w "$target" "$@"
}

install_wheels() { # ROOT ENVIRONMENT WHEELS [PATH]: install below ROOT; compile PATH in site-packages (default: all)
    local root=$1 place=$2 wheel name pinned=()
    [ -d "$root/usr" ] || { mkdir -p "$root"; tar -xf "$OUTPUT/layers/debian.tar" -C "$root"; }
    rm -rf "$root/tmp/wheels"
    cp -r "$3" "$root/tmp/wheels"
    cp /usr/share/python-wheels/pip-*.whl "$root/tmp/pip.zip"
    for wheel in "$3"/*.whl; do # by name and version: for a file, pip would record its path
        name=${wheel##*/}
        pinned+=("$(cut -d- -f1 <<< "$name")==$(cut -d- -f2 <<< "$name")")
    done
    [ -x "$root$place/bin/python" ] || chroot "$root" python3 -m venv --without-pip "$place"
    chroot "$root" env -i PATH=/usr/bin:/bin HOME=/tmp LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=/tmp/pip.zip \
        "$place/bin/python" -m pip install -q --no-index --find-links /tmp/wheels --no-deps --no-compile --no-cache-dir \
        --root-user-action ignore --disable-pip-version-check "${pinned[@]}"
    find "$root$place/lib" -type d -name tests -prune -exec rm -rf {} +
    compile "$root" "$place/bin/python" "$place/lib/python3.11/site-packages/${4:-}"
}

compile() { # ROOT PYTHON PATH: compile reproducibly: one process, no random hashes
    # PYTHONDONTWRITEBYTECODE: modules that Python imports would get byte code with timestamps.
    chroot "$1" env -i PATH=/usr/bin:/bin PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE=1 "$2" -m compileall -q -f -j 1 \
        --invalidation-mode unchecked-hash "$3" > /dev/null || true # some packages contain code templates that do not compile
}

inputs_of_python() { printf '%s\n' setup.cfg constraints.txt tools/images/services.txt; }

layer_python() { # OUT
    local wheels=$WORK/wheels.python
    nova_wheel
    fetch_wheels "$wheels" "$(ls "$OUTPUT"/wheels/nova-*.whl)[$EXTRAS]" \
        lxml $(grep '^python-memcached==' "$HERE/services.txt") # for the libvirt driver; for the token cache
    rm -f "$wheels"/nova-*.whl
    install_wheels "$WORK/root.nova" /opt/nova "$wheels"
    oci pack "$WORK/root.nova" opt/nova --tar "$1"
    cp "$1" "$OUTPUT/layers/python.tar"
}

inputs_of_nova() { printf '%s\n' nova setup.cfg pyproject.toml README.md LICENSE; }

nova_wheel() { # build $OUTPUT/wheels/nova-VERSION-….whl from a copy, because building leaves files in the source tree
    local copy=$WORK/source
    mkdir -p "$OUTPUT/wheels" "$copy"
    (cd "$REPO" && inputs_of_nova | sources | tar -cf - --null -T -) | tar -xf - -C "$copy"
    rm -f "$OUTPUT"/wheels/nova-*.whl
    builder wheel -q --no-deps -w "$OUTPUT/wheels" "$copy"
    rm -rf "$copy"
}

layer_nova() { # OUT
    local root=$WORK/root.nova
    nova_wheel
    mkdir -p "$root"
    [ -d "$root/usr" ] || tar -xf "$OUTPUT/layers/debian.tar" -C "$root"
    [ -d "$root/opt/nova" ] || tar -xf "$OUTPUT/layers/python.tar" -C "$root"
    install_wheels "$root" /opt/nova "$OUTPUT/wheels" nova
    oci pack "$root" opt/nova --tar "$WORK/whole.tar"
    oci subtract "$OUTPUT/layers/python.tar" "$WORK/whole.tar" --tar "$1"
    rm -rf "$root" "$WORK/whole.tar"
}

inputs_of_services() { printf '%s\n' tools/images/services.txt; }

layer_services() { # OUT
    local wheels=$WORK/wheels.services
    fetch_wheels "$wheels" --no-deps -r "$HERE/services.txt"
    install_wheels "$WORK/root.services" /opt/services "$wheels"
    oci pack "$WORK/root.services" opt/services --tar "$1"
    rm -rf "$WORK/root.services"
}

inputs_of_federator() { inputs_of_nova; echo constraints.txt; }

layer_federator() { # OUT
    local wheels=$WORK/wheels.federator root=$WORK/root.federator
    nova_wheel
    fetch_wheels "$wheels" "${FEDERATOR_PACKAGES[@]}"
    cp "$OUTPUT"/wheels/nova-*.whl "$wheels/"
    install_wheels "$root" /opt/nova "$wheels"
    find "$root"/opt/nova/lib/python3*/site-packages/nova -mindepth 1 -maxdepth 1 -type d \
        ! -name __pycache__ ! -name common ! -name federator ! -name cmd ! -name cli -exec rm -rf {} +
    find "$root/opt/nova/bin" -name 'nova*' ! -name novactl ! -name nova-federator -delete
    chroot "$root" env -i PYTHONDONTWRITEBYTECODE=1 /opt/nova/bin/python -c \
        'import nova.federator.service.agent, nova.federator.service.scheduler, nova.federator.client.renewal'
    oci pack "$root" opt/nova --tar "$1"
    rm -rf "$root"
}

# --- Kubernetes ------------------------------------------------------------------------------------
kubernetes_layer() { # NAME OUT PROGRAM…
    local root=$WORK/root.$1 out=$2
    shift 2
    install -D -m 755 -t "$root/usr/local/bin" "${@/#/$KUBERNETES_PROGRAMS/}"
    oci pack "$root" usr --tar "$out"
    rm -rf "$root"
}

inputs_of_etcd() { printf '%s\n' "$KUBERNETES_PROGRAMS"/{etcd,etcdctl}; }

inputs_of_kube-apiserver() { echo "$KUBERNETES_PROGRAMS/kube-apiserver"; }

inputs_of_kube-controller-manager() { echo "$KUBERNETES_PROGRAMS/kube-controller-manager"; }

layer_etcd() { kubernetes_layer etcd "$1" etcd etcdctl; }

layer_kube-apiserver() { kubernetes_layer kube-apiserver "$1" kube-apiserver; }

layer_kube-controller-manager() { kubernetes_layer kube-controller-manager "$1" kube-controller-manager; }
