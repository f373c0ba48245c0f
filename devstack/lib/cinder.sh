# shellcheck shell=bash
# NOVA_CINDER=True: Cinder from PyPI with its NFS driver. Cinder and the hosts run on this machine, so wrapper programs
# replace each NFS mount with a bind mount. Neither an NFS server nor NFS support in the kernel is needed.

CINDER_SERVICES="cinder-scheduler cinder-volume cinder-api"
# Two backends, because tests migrate and retype attached volumes.
CINDER_BACKENDS="nfs nfs2"

cinder_wanted() { [ "$NOVA_CINDER" = True ]; }

# Print the directory of the wrapper programs; it comes first in the PATH of Cinder and nova-compute.
cinder_programs() { echo "$DATA_DIR/cinder/bin"; }

prepare_cinder() {
    local service
    write_mount_programs
    write_cinder_conf
    # Volumes mounted later must appear in the mount namespaces of running guests. systemd does this by default.
    mount --make-rshared /
    define_service cinder-api "$VENV/bin/gunicorn" \
        priority=12 stopsignal=INT "$(cinder_environment),GUNICORN_CMD_ARGS=\"--config $DATA_DIR/etc/cinder/gunicorn.conf.py\""
    for service in cinder-scheduler cinder-volume; do
        define_service "$service" "$VENV/bin/$service --config-file $DATA_DIR/etc/cinder/cinder.conf" priority=12 "$(cinder_environment)"
    done
}

cinder_environment() {
    echo "environment=OS_CINDER_CONFIG_DIR=\"$DATA_DIR/etc/cinder\",PATH=\"$(cinder_programs):$VENV/bin:/usr/sbin:/usr/bin:/sbin:/bin\",CONFIG=\"$(digest "$DATA_DIR/etc/cinder" "$(cinder_programs)")\""
}

write_mount_programs() {
    install -d -m 755 "$(cinder_programs)"
    write_file "$(cinder_programs)/mount" 755 <<- 'SH'
	#!/bin/sh
	# mount -t nfs [-o OPTIONS] HOST:DIRECTORY MOUNTPOINT
	[ "$1 $2" = "-t nfs" ] || exec /bin/mount "$@"
	for argument in "$@"; do source=$target target=$argument; done
	exec mount.nfs "$source" "$target"
	SH
    # Cinder checks that mount.nfs exists.
    write_file "$(cinder_programs)/mount.nfs" 755 <<- 'SH'
	#!/bin/sh
	# mount.nfs HOST:DIRECTORY MOUNTPOINT: bind-mount the directory, which is on this machine
	[ $# -ge 2 ] || exit 1
	exec /bin/mount --bind "${1#*:}" "$2"
	SH
    # Cinder runs privileged commands with sudo. In this stack Cinder already runs as root.
    write_file "$(cinder_programs)/sudo" 755 <<- 'SH'
	#!/bin/sh
	while [ "${1#-}" != "$1" ]; do shift; done
	exec "$@"
	SH
}

write_cinder_conf() {
    local etc=$DATA_DIR/etc/cinder data=$DATA_DIR/cinder backend
    install -d -m 755 "$data"
    install -d -m 700 "$data/state" "$data/locks"
    install -d -m 755 "$data/mnt"
    for backend in $CINDER_BACKENDS; do
        # World-writable: libvirt changes the owner of the volume files to the account of the guest.
        install -d -m 777 "$data/exports/$backend"
        echo "$HOST_ADDRESS:$data/exports/$backend" | write_file "$etc/$backend.shares" 600
    done
    write_file "$etc/rootwrap.conf" 644 <<- CONF
	[DEFAULT]
	filters_path = $VENV/etc/cinder/rootwrap.d,$VENV/etc/os-brick/rootwrap.d
	exec_dirs = $(cinder_programs),$VENV/bin,/sbin,/usr/sbin,/bin,/usr/bin
	use_syslog = False
	CONF
    write_file "$etc/cinder.conf" 600 <<- CONF
	[DEFAULT]
	debug = $DEBUG
	use_stderr = True
	host = $HOST_NAME
	my_ip = $HOST_ADDRESS
	transport_url = $RABBIT_URL
	auth_strategy = keystone
	api_paste_config = $VENV/etc/cinder/api-paste.ini
	resource_query_filters_file = $VENV/etc/cinder/resource_filters.json
	rootwrap_config = $etc/rootwrap.conf
	state_path = $data/state
	enabled_backends = ${CINDER_BACKENDS/ /,}
	default_volume_type = ${CINDER_BACKENDS%% *}
	glance_api_servers = $GLANCE_URL
	[database]
	connection = $(database_url cinder)
	[oslo_concurrency]
	lock_path = $data/locks
	$(keystone_authtoken cinder)
	[nova]
	interface = public
	$(service_credentials cinder)
	$(for backend in $CINDER_BACKENDS; do cinder_backend "$backend"; done)
	CONF
    write_gunicorn_options cinder "$CINDER_PORT" "$etc/cinder.conf"
}

cinder_backend() { # NAME
    cat <<- CONF
	[$1]
	volume_driver = cinder.volume.drivers.nfs.NfsDriver
	volume_backend_name = $1
	nfs_shares_config = $DATA_DIR/etc/cinder/$1.shares
	nfs_mount_point_base = $DATA_DIR/cinder/mnt
	nfs_snapshot_support = True
	nas_secure_file_operations = False
	nas_secure_file_permissions = False
	image_volume_cache_enabled = False
	CONF
}

sync_cinder() {
    local log=$DATA_DIR/logs/stack/cinder.log version
    version=$(database_state cinder)
    ! stamp_is cinder "$version" || return 0
    "$VENV/bin/cinder-manage" --config-file "$DATA_DIR/etc/cinder/cinder.conf" db sync > "$log" 2>&1 || die "cinder-manage db sync failed" "$log"
    set_stamp cinder "$version"
}

start_cinder() {
    # shellcheck disable=SC2086  # a list of names
    start_services $CINDER_SERVICES
    wait_for "Cinder" "$DATA_DIR/logs/cinder-api.log" http_responds "$CINDER_URL/"
    BACKENDS=$CINDER_BACKENDS as_admin "$VENV/bin/python" "$DEVSTACK_DIR/lib/volume_types.py" > "$DATA_DIR/logs/stack/volume-types.log" 2>&1 ||
        die "creating Cinder's volume types failed" "$DATA_DIR/logs/cinder-volume.log"
    note "Cinder is up at $CINDER_URL; volume types: $CINDER_BACKENDS"
}

nova_conf_of_cinder() { # print the sections of nova.conf for Cinder
    cinder_wanted || return 0
    cat <<- CONF
	[volume]
	driver = cinder
	[cinder]
	$(service_credentials nova-volumes)
	endpoint_override = $CINDER_URL/v3
	CONF
}

unmount_all() { # unmount everything below DATA_DIR, so that removing DATA_DIR does not delete mounted files
    local mountpoint
    while read -r mountpoint; do
        umount "$mountpoint" || warn "unmounting $mountpoint failed; it is still mounted"
    done < <(awk -v home="$DATA_DIR/" 'index($5, home) == 1 { print $5 }' /proc/self/mountinfo | sort -r)
}
