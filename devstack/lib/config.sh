# shellcheck shell=bash
# The options, documented in local.conf.sample. Environment variables override local.conf, which overrides the defaults
# below.

read_local_conf() { # FILE: read KEY=VALUE lines (if the file has sections: of [[local|localrc]]); execute nothing
    local line key value in_section=true
    grep -q '^\[\[' "$1" && in_section=false
    while IFS= read -r line || [ -n "$line" ]; do
        case "$line" in
            '[[local|localrc]]'*) in_section=true; continue ;;
            '[['*) in_section=false; continue ;;
        esac
        $in_section || continue
        [[ $line =~ ^[[:space:]]*([A-Z][A-Z0-9_]*)=(.*)$ ]] || continue
        key=${BASH_REMATCH[1]} value=${BASH_REMATCH[2]}
        if [[ $value =~ ^\"([^\"]*)\" || $value =~ ^\'([^\']*)\' ]]; then
            value=${BASH_REMATCH[1]}
        else
            value=${value%%[[:space:]]#*}
            value=${value%"${value##*[![:space:]]}"}
        fi
        [ -n "${!key+set}" ] || printf -v "$key" '%s' "$value"
    done < "$1"
}

# The options of a run are the defaults of the next run: a stack with another database would have no servers.
CHOICES=(NOVA_DATABASE NOVA_NETWORK NOVA_CINDER NOVA_HOSTS NOVA_SPICE NOVA_EC2)
DEFAULT_DATA_DIR=/opt/stack/nova-data

keep_choices() { # store the options for later runs; fail if the stack was installed with another database or network
    local name first file=$DATA_DIR/choices.env
    for name in NOVA_DATABASE NOVA_NETWORK; do
        first=$(sed -n "s/^$name=//p" "$file" 2> /dev/null || true)
        [ "${first:-${!name}}" = "${!name}" ] ||
            die "$name=${!name}: this stack was installed with $first; run unstack.sh to change it"
    done
    for name in "${CHOICES[@]}"; do echo "$name=${!name}"; done > "$file"
}

load_options() {
    local file=${LOCAL_CONF:-$DEVSTACK_DIR/local.conf}
    [ ! -f "$file" ] || read_local_conf "$file"

    DATA_DIR=${DATA_DIR:-$DEFAULT_DATA_DIR}
    [ ! -f "$DATA_DIR/choices.env" ] || read_local_conf "$DATA_DIR/choices.env"
    VENV=${VENV:-$DATA_DIR/venv}
    PYTHON=${PYTHON:-/usr/bin/python3}

    NOVA_CINDER=${NOVA_CINDER:-False}
    NOVA_NETWORK=${NOVA_NETWORK:-linuxnet}
    # Neutron's migrations support neither SQLite nor PostgreSQL.
    [ "$NOVA_NETWORK" = linuxnet ] || NOVA_DATABASE=${NOVA_DATABASE:-mysql}
    # SQLite does not support the concurrent writes of Cinder's processes.
    [ "$NOVA_CINDER" = True ] && NOVA_DATABASE=${NOVA_DATABASE:-mysql} || NOVA_DATABASE=${NOVA_DATABASE:-sqlite}
    NOVA_ENABLED=${NOVA_ENABLED:-True}
    NOVA_API_WORKERS=${NOVA_API_WORKERS:-2}
    NOVA_CONDUCTOR_WORKERS=${NOVA_CONDUCTOR_WORKERS:-2}
    HOST_NAME=${HOST_NAME:-$(hostname)}
    NOVA_SPICE=${NOVA_SPICE:-False}
    NOVA_EC2=${NOVA_EC2:-False}
    NOVA_HOSTS=${NOVA_HOSTS:-1}
    HOSTS_NETWORK=${HOSTS_NETWORK:-10.78.0}
    HOSTS_TUNNELS=${HOSTS_TUNNELS:-10.78.2}
    HOSTS_OUTSIDE=${HOSTS_OUTSIDE:-10.78.1}
    SERVICE_HOST=${SERVICE_HOST:-127.0.0.1}
    REGION_NAME=${REGION_NAME:-RegionOne}
    DEBUG=${DEBUG:-False}
    LIBVIRT_TYPE=${LIBVIRT_TYPE:-auto}

    KEYSTONE_PORT=${KEYSTONE_PORT:-5000}
    GLANCE_PORT=${GLANCE_PORT:-9292}
    CINDER_PORT=${CINDER_PORT:-8776}
    NEUTRON_PORT=${NEUTRON_PORT:-9696}
    NOVA_API_PORT=${NOVA_API_PORT:-8774}
    NOVA_EC2_PORT=${NOVA_EC2_PORT:-8788}
    NOVA_METADATA_PORT=${NOVA_METADATA_PORT:-8775}
    NOVA_NOVNCPROXY_PORT=${NOVA_NOVNCPROXY_PORT:-6080}
    NOVA_SPICEHTML5PROXY_PORT=${NOVA_SPICEHTML5PROXY_PORT:-6082}
    NOVA_SERIALPROXY_PORT=${NOVA_SERIALPROXY_PORT:-6083}

    NETWORK_NAME=${NETWORK_NAME:-private}
    NETWORK_CIDR=${NETWORK_CIDR:-10.11.0.0/24}
    NETWORK_DNS=${NETWORK_DNS:-$(first_name_server)}
    FLOATING_POOL=${FLOATING_POOL:-public}
    FLOATING_RANGE=${FLOATING_RANGE-$HOSTS_OUTSIDE.128/26}
    FIRST_SERVER=${FIRST_SERVER:-first}
    FIRST_SERVER_FLAVOR=${FIRST_SERVER_FLAVOR:-cirros256}

    check_options
    # LISTEN: the addresses on which services listen; HOST_ADDRESS: the address by which other hosts reach this machine
    LISTEN=$SERVICE_HOST HOST_ADDRESS=$SERVICE_HOST
    if [ "$NOVA_HOSTS" -gt 1 ]; then
        HOST_ADDRESS=$HOSTS_NETWORK.1
        [ "$SERVICE_HOST" = "$HOST_ADDRESS" ] || LISTEN="$SERVICE_HOST $HOST_ADDRESS"
    fi
    KEYSTONE_URL=http://$SERVICE_HOST:$KEYSTONE_PORT/v3
    GLANCE_URL=http://$SERVICE_HOST:$GLANCE_PORT
    CINDER_URL=http://$SERVICE_HOST:$CINDER_PORT
    NEUTRON_URL=http://$SERVICE_HOST:$NEUTRON_PORT
    NOVA_URL=http://$SERVICE_HOST:$NOVA_API_PORT/v2.1
}

first_name_server() { # print the first IPv4 name server of this host, except those on loopback, which guests cannot reach
    awk '$1 == "nameserver" && $2 !~ /^127\./ && $2 !~ /:/ { print $2; exit }' /etc/resolv.conf
}

check_options() {
    case "$DATA_DIR" in
        / | /usr* | /etc* | /var | /home | /root) die "DATA_DIR=$DATA_DIR: choose a directory that nothing else uses" ;;
        /*) ;;
        *) die "DATA_DIR=$DATA_DIR: must be an absolute path" ;;
    esac
    case "$NOVA_DATABASE" in
        sqlite | postgresql | mysql) ;;
        *) die "NOVA_DATABASE=$NOVA_DATABASE: choose sqlite, postgresql or mysql" ;;
    esac
    case "$NOVA_HOSTS" in
        [1-9]) ;;
        *) die "NOVA_HOSTS=$NOVA_HOSTS: choose 1 to 9" ;;
    esac
    local name
    for name in NOVA_SPICE NOVA_EC2 NOVA_CINDER; do
        case "${!name}" in
            True | False) ;;
            *) die "$name=${!name}: choose True or False" ;;
        esac
    done
    [ "$NOVA_CINDER $NOVA_DATABASE" != "True sqlite" ] || die "NOVA_DATABASE=sqlite: choose mysql or postgresql for NOVA_CINDER=True"
    case "$NOVA_NETWORK $NOVA_DATABASE" in
        linuxnet* | "neutron mysql") ;;
        neutron*) die "NOVA_DATABASE=$NOVA_DATABASE: choose mysql for NOVA_NETWORK=neutron" ;;
        *) die "NOVA_NETWORK=$NOVA_NETWORK: choose linuxnet or neutron" ;;
    esac
    [ "$NOVA_NETWORK" = linuxnet ] || [ -n "$FLOATING_RANGE" ] || die "FLOATING_RANGE is empty: NOVA_NETWORK=neutron needs it as its external network"
    case "$LIBVIRT_TYPE" in
        auto | qemu | kvm) ;;
        *) die "LIBVIRT_TYPE=$LIBVIRT_TYPE: choose auto, qemu or kvm" ;;
    esac
}

prepare_data_dir() {
    mkdir -p "$DATA_DIR"/{etc,logs/stack,run,stamps,images,nova}
    # Guests and RabbitMQ run under their own accounts and need access to the directory. Files with secrets have
    # stricter modes.
    chmod 755 "$DATA_DIR"
    : > "$DATA_DIR/.nova-devstack"  # allows unstack.sh to remove the directory
    keep_choices
    load_secrets
}
