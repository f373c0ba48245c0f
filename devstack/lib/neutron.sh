# shellcheck shell=bash
# NOVA_NETWORK=neutron: Neutron from PyPI with ML2/OVN, and the Open vSwitch and OVN of Debian. Without the kernel module of
# Open vSwitch, the switch forwards packets itself (netdev). libvirt and Nova expect the socket of its database at Debian's path.

NEUTRON_SERVICES="neutron-api neutron-ovn-agent"
SWITCH_SOCKET=/run/openvswitch/db.sock

neutron_wanted() { [ "$NOVA_NETWORK" = neutron ]; }

neutron_packages() { echo openvswitch-switch ovn-central ovn-host haproxy conntrack; }

prepare_neutron() {
    local data=$DATA_DIR/neutron etc=$DATA_DIR/etc/neutron
    secret METADATA_SECRET
    install -d -m 755 "$data" "$data/ovn" /run/openvswitch
    [ ! -S "$SWITCH_SOCKET" ] || supervisorctl status ovs-db 2> /dev/null | grep RUNNING > /dev/null ||
        ! ovs-vsctl --timeout=2 --no-wait show > /dev/null 2>&1 ||
        die "this machine already runs Open vSwitch; stop it, because NOVA_NETWORK=neutron starts its own"
    modprobe -q openvswitch 2> /dev/null && DATAPATH=system || DATAPATH=netdev
    create_ovsdb "$data/ovn/nb.db" /usr/share/ovn/ovn-nb.ovsschema
    create_ovsdb "$data/ovn/sb.db" /usr/share/ovn/ovn-sb.ovsschema
    define_service ovn-nb "/usr/sbin/ovsdb-server $data/ovn/nb.db --remote=punix:$data/ovn/nb.sock $(ovn_remote 6641) --unixctl=$data/ovn/nb.ctl" priority=3
    define_service ovn-sb "/usr/sbin/ovsdb-server $data/ovn/sb.db --remote=punix:$data/ovn/sb.sock $(ovn_remote 6642) --unixctl=$data/ovn/sb.ctl" priority=3
    define_service ovn-northd "/usr/bin/ovn-northd --ovnnb-db=unix:$data/ovn/nb.sock --ovnsb-db=unix:$data/ovn/sb.sock --unixctl=$data/ovn/northd.ctl" priority=4
    define_switch '' '' "$data/switch.db"
    write_neutron_conf
    write_gunicorn_options neutron "$NEUTRON_PORT" '' 1
    # ASGI_WORKERS: the number of processes that share the events of OVN, which Neutron cannot read from gunicorn.
    define_service neutron-api "$VENV/bin/gunicorn" priority=12 stopsignal=INT \
        "environment=$(neutron_environment gunicorn.conf.py),ASGI_WORKERS=\"1\",GUNICORN_CMD_ARGS=\"--config $etc/gunicorn.conf.py\""
    define_neutron_agent '' '' 1
}

neutron_environment() { # FILE: configuration file of the program, besides the common files
    local etc=$DATA_DIR/etc/neutron
    echo "OS_NEUTRON_CONFIG_DIR=\"$etc\",OS_NEUTRON_CONFIG_FILES=\"neutron.conf;ml2.ini\",PATH=\"$VENV/bin:/usr/sbin:/usr/bin:/sbin:/bin\",CONFIG=\"$(digest "$etc/neutron.conf" "$etc/ml2.ini" "$etc/$1")\""
}

ovn_remote() { [ "$NOVA_HOSTS" = 1 ] || echo "--remote=ptcp:$1:$HOST_ADDRESS"; } # PORT: print an option for additional hosts

# PREFIX ENTER FILE: define the programs of Open vSwitch and OVN of a host. ENTER: the command that runs programs on the host.
define_switch() {
    create_ovsdb "$3" /usr/share/openvswitch/vswitch.ovsschema
    define_service "$1ovs-db" "$2 /usr/sbin/ovsdb-server $3 --remote=punix:$SWITCH_SOCKET --unixctl=/run/openvswitch/db.ctl" priority=8
    define_service "$1ovs-switch" "$2 /usr/sbin/ovs-vswitchd unix:$SWITCH_SOCKET --unixctl=/run/openvswitch/switch.ctl" priority=9
    define_service "$1ovn-controller" "$2 /usr/bin/ovn-controller unix:$SWITCH_SOCKET" priority=9 \
        "environment=OVN_RUNDIR=\"/run/openvswitch\",OVS_RUNDIR=\"/run/openvswitch\""
}

# PREFIX ENTER NUMBER: define the agent of a host, which serves metadata to its guests. It runs as root and needs no sudo.
define_neutron_agent() {
    local ini=$DATA_DIR/etc/neutron/agent$3.ini data=$DATA_DIR/neutron metadata=$SERVICE_HOST ovn=unix:$DATA_DIR/neutron/ovn
    local nb=$ovn/nb.sock sb=$ovn/sb.sock
    [ "$3" = 1 ] || metadata=$HOSTS_NETWORK.$3 nb=tcp:$HOST_ADDRESS:6641 sb=tcp:$HOST_ADDRESS:6642
    write_file "$ini" 600 <<- CONF
	[DEFAULT]
	host = $(host_name "$3")
	state_path = $data/state-$3
	nova_metadata_host = $metadata
	nova_metadata_port = $NOVA_METADATA_PORT
	metadata_proxy_shared_secret = $METADATA_SECRET
	[agent]
	extensions = metadata
	root_helper = env
	[ovs]
	ovsdb_connection = unix:$SWITCH_SOCKET
	[ovn]
	ovn_nb_connection = $nb
	ovn_sb_connection = $sb
	CONF
    define_service "$1neutron-ovn-agent" "$2 $VENV/bin/neutron-ovn-agent --config-file $DATA_DIR/etc/neutron/neutron.conf --config-file $ini" \
        priority=13 "environment=$(neutron_environment "agent$3.ini")"
}

create_ovsdb() { # FILE SCHEMA
    [ -s "$1" ] || ovsdb-tool create "$1" "$2"
}

write_neutron_conf() {
    local etc=$DATA_DIR/etc/neutron data=$DATA_DIR/neutron
    write_file "$etc/neutron.conf" 600 <<- CONF
	[DEFAULT]
	debug = $DEBUG
	use_stderr = True
	host = $HOST_NAME
	auth_strategy = keystone
	core_plugin = ml2
	service_plugins = ovn-router,auto_allocate
	api_paste_config = $VENV/etc/neutron/api-paste.ini
	transport_url = fake:/
	dhcp_agent_notification = False
	rpc_workers = 0
	state_path = $data/state
	[oslo_messaging_notifications]
	driver = noop
	[oslo_concurrency]
	lock_path = $data/locks
	[database]
	connection = $(database_url neutron)
	$(keystone_authtoken neutron)
	[nova]
	$(service_credentials neutron)
	CONF
    write_file "$etc/ml2.ini" 644 <<- CONF
	[ml2]
	type_drivers = geneve,vlan,flat,local
	tenant_network_types = vlan
	mechanism_drivers = ovn
	extension_drivers = port_security
	[ml2_type_geneve]
	max_header_size = 38
	vni_ranges = 1:65535
	[ml2_type_vlan]
	network_vlan_ranges = tenant:100:199
	[ml2_type_flat]
	flat_networks = public
	[ovn]
	ovn_nb_connection = unix:$data/ovn/nb.sock
	ovn_sb_connection = unix:$data/ovn/sb.sock
	ovn_metadata_enabled = True
	CONF
}

sync_neutron() {
    local etc=$DATA_DIR/etc/neutron log=$DATA_DIR/logs/stack/neutron.log version
    version=$(database_state neutron)
    ! stamp_is neutron "$version" || return 0
    "$VENV/bin/neutron-db-manage" --config-file "$etc/neutron.conf" --config-file "$etc/ml2.ini" upgrade heads > "$log" 2>&1 ||
        die "neutron-db-manage upgrade failed" "$log"
    set_stamp neutron "$version"
}

start_switch() { # start OVN, and Open vSwitch on this machine with a bridge to the external network
    local gateway
    gateway=$(first_address "$FLOATING_RANGE")
    start_services ovn-nb ovn-sb
    start_services ovn-northd
    start_host_switch 1 '' '' "unix:$DATA_DIR/neutron/ovn/sb.sock"
    ovs-vsctl --timeout=30 --may-exist add-br br-public -- set bridge br-public datapath_type="$DATAPATH" -- \
        set Open_vSwitch . external_ids:ovn-bridge-mappings=tenant:br-tenant,public:br-public \
        external_ids:ovn-cms-options=enable-chassis-as-gw
    ip address replace "$gateway/${FLOATING_RANGE#*/}" dev br-public
    ip link set br-public up
    # Guests reach other networks through this machine.
    sysctl -q -w net.ipv4.ip_forward=1
    nft -f - <<- NFT
	table ip nova_stack_neutron
	delete table ip nova_stack_neutron
	table ip nova_stack_neutron {
	    chain postrouting {
	        type nat hook postrouting priority srcnat
	        ip saddr $FLOATING_RANGE ip daddr != $FLOATING_RANGE masquerade
	    }
	}
	NFT
}

# NUMBER PREFIX ENTER SB: start the switch of a host. Networks are VLANs of br-tenant, because the switch does not offload
# packets of tunnels. OVN tunnels only packets of ports that migrate, between the addresses of these bridges.
start_host_switch() {
    local prefix=$2 enter=$3 address=$HOSTS_TUNNELS.$1
    # shellcheck disable=SC2086  # ENTER is a command
    $enter mkdir -p /run/openvswitch
    start_services "${prefix}ovs-db"
    # shellcheck disable=SC2086
    wait_for "the database of Open vSwitch" "$DATA_DIR/logs/${prefix}ovs-db.log" $enter ovs-vsctl --timeout=2 --no-wait init
    # shellcheck disable=SC2086
    $enter ovs-vsctl --no-wait set Open_vSwitch . external_ids:system-id="$(host_name "$1")" external_ids:hostname="$(host_name "$1")" \
        other_config:userspace-tso-enable=true external_ids:ovn-remote="$4" external_ids:ovn-encap-type=geneve \
        external_ids:ovn-encap-ip="$address" external_ids:ovn-bridge=br-int external_ids:ovn-bridge-datapath-type="$DATAPATH" \
        external_ids:ovn-bridge-mappings=tenant:br-tenant
    start_services "${prefix}ovs-switch" "${prefix}ovn-controller"
    # shellcheck disable=SC2086
    $enter ovs-vsctl --timeout=30 --may-exist add-br br-int -- set bridge br-int datapath_type="$DATAPATH" fail_mode=secure -- \
        --may-exist add-br br-tenant -- set bridge br-tenant datapath_type="$DATAPATH"
    # shellcheck disable=SC2086
    $enter ip address replace "$address/24" dev br-tenant
    # shellcheck disable=SC2086
    $enter ip link set br-tenant up
}

host_enter() { hosts_tool commands "$1" | sed -n 's/^enter //p'; } # NUMBER: print the command that runs programs on a host

prepare_neutron_of_hosts() { # define the programs of the additional hosts
    local number
    for number in $(additional_hosts); do
        define_switch "host$number-" "$(host_enter "$number")" "$DATA_DIR/neutron/switch-$number.db"
        define_neutron_agent "host$number-" "$(host_enter "$number")" "$number"
    done
}

start_neutron_of_hosts() { # start these programs, and connect each host to the bridge of this machine
    local number pid
    for number in $(additional_hosts); do
        start_host_switch "$number" "host$number-" "$(host_enter "$number")" "tcp:$HOST_ADDRESS:6642"
        if ! ovs-vsctl list-ports br-tenant | grep -qx "tenant$number"; then
            pid=$(cd "$REPO" && "$PYTHON" -c 'import sys, pathlib; from tools.hosts.site import Site; print(Site(pathlib.Path(sys.argv[1])).host(int(sys.argv[2])).pid)' "$DATA_DIR/hosts" "$number")
            ip link delete "tenant$number" 2> /dev/null || true
            ip link add "tenant$number" mtu 1600 type veth peer name tenant0 mtu 1600 netns "$pid"
            ip link set "tenant$number" up
            hosts_tool run "$number" ip link set tenant0 up
            ovs-vsctl --timeout=30 --may-exist add-port br-tenant "tenant$number"
            hosts_tool run "$number" ovs-vsctl --timeout=30 --may-exist add-port br-tenant tenant0
        fi
        start_services "host$number-neutron-ovn-agent"
    done
}

first_address() { "$PYTHON" -c 'import ipaddress, sys; print(next(ipaddress.ip_network(sys.argv[1]).hosts()))' "$1"; } # CIDR

start_neutron() {
    # shellcheck disable=SC2086  # a list of names
    start_services $NEUTRON_SERVICES
    wait_for "Neutron" "$DATA_DIR/logs/neutron-api.log" http_responds "$NEUTRON_URL/"
    note "Neutron is up at $NEUTRON_URL (ML2/OVN, datapath $DATAPATH)"
}

nova_conf_of_neutron() { # print the section of nova.conf for Neutron
    neutron_wanted || return 0
    cat <<- CONF
	[neutron]
	$(service_credentials nova-networks)
	endpoint_override = $NEUTRON_URL
	CONF
}

remove_switch() { # remove what Open vSwitch, OVN and the agent leave on this machine after they were killed
    local name
    [ -d "$DATA_DIR/neutron" ] || return 0
    pkill -9 -f "haproxy -f $DATA_DIR/neutron/state-" || true
    nft delete table ip nova_stack_neutron 2> /dev/null || true
    for name in $(ip -o netns list | awk '$1 ~ /^ovnmeta-/ { print $1 }'); do ip netns delete "$name" || true; done
    for name in br-public br-tenant br-int ovs-netdev; do ip link delete "$name" 2> /dev/null || true; done
    rm -f "$SWITCH_SOCKET"
}
