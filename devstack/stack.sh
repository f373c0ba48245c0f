#!/usr/bin/env bash
# Installs and starts Nova with its dependencies on a plain Debian 12 machine, and boots a guest up to its login prompt.
# Run it again to repair an installation or continue an interrupted one. Options: local.conf.sample.
set -euo pipefail

DEVSTACK_DIR=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")" && pwd)
REPO=$(dirname "$DEVSTACK_DIR")
for file in common config packages python supervisor rabbitmq database keystone glance cinder neutron libvirt guest_image nova hosts cloud; do
    # shellcheck source=/dev/null
    . "$DEVSTACK_DIR/lib/$file.sh"
done

check_machine() {
    require_root
    [ "$(. /etc/os-release && echo "$ID $VERSION_ID")" = "debian 12" ] || warn "this script supports Debian 12 only; continuing anyway"
    export PATH=$PATH:/usr/sbin:/sbin LC_ALL=C.UTF-8
    unset PYTHONDONTWRITEBYTECODE # without byte code, each start of a service would compile all modules
}

install_everything() {
    step "Debian packages, Python environment and guest image"
    # shellcheck disable=SC2046  # lists of packages
    install_packages $(python_packages)
    start_task python install_python
    # shellcheck disable=SC2046
    install_packages $(service_packages)
    note "Debian packages: done"
    start_task guest-image build_guest_image
    finish_task python "Nova, Keystone, Glance and their libraries"
    start_task byte-code compile_byte_code # killed at the end of this script
}

start_infrastructure() {
    step "RabbitMQ, $NOVA_DATABASE, memcached, libvirt and the databases of the services"
    start_supervisor
    prepare_hosts_network
    prepare_rabbitmq
    prepare_database
    prepare_memcached
    prepare_libvirt
    choose_virt_type
    # shellcheck disable=SC2086  # DATABASE_SERVICE may be empty
    start_services epmd rabbitmq memcached $DATABASE_SERVICE "${LIBVIRT_SERVICES[@]}"
    wait_for_database
    # RabbitMQ and libvirt start in the meantime.
    prepare_keystone
    prepare_glance
    start_task keystone-database sync_keystone
    start_task glance-database sync_glance
    if neutron_wanted; then
        prepare_neutron
        start_switch
        start_task neutron-database sync_neutron
    fi
    if is_true "$NOVA_ENABLED"; then
        prepare_nova
        start_task nova-database sync_nova
    fi
    wait_for_rabbitmq
    wait_for_libvirt
    note "virtualization type of guests: $VIRT_TYPE"
}

start_identity_and_images() {
    step "Keystone and Glance"
    check_port keystone "$KEYSTONE_PORT" KEYSTONE_PORT
    check_port glance "$GLANCE_PORT" GLANCE_PORT
    finish_task keystone-database "Keystone's database"
    finish_task glance-database "Glance's database"
    start_services keystone glance
    write_openrc
    if is_true "$NOVA_ENABLED"; then start_nova; fi
    wait_for_keystone
    create_accounts
    note "projects admin, demo and service; users admin, demo, nova and glance"
    wait_for_glance
    finish_task guest-image "kernel, ramdisk, machine image and disk image"
    upload_images
}

start_volumes() {
    step "Cinder"
    check_port cinder-api "$CINDER_PORT" CINDER_PORT
    prepare_cinder
    sync_cinder
    start_cinder
}

start_network_service() {
    step "Neutron"
    check_port neutron-api "$NEUTRON_PORT" NEUTRON_PORT
    finish_task neutron-database "Neutron's database"
    start_neutron
}

start_nova() { # start Nova's services in the background
    check_port nova-api "$NOVA_API_PORT" NOVA_API_PORT
    ! ec2_wanted || check_port nova-api-ec2 "$NOVA_EC2_PORT" NOVA_EC2_PORT
    check_port nova-metadata "$NOVA_METADATA_PORT" NOVA_METADATA_PORT
    check_port nova-novncproxy "$NOVA_NOVNCPROXY_PORT" NOVA_NOVNCPROXY_PORT
    ! spice_wanted || check_port nova-spicehtml5proxy "$NOVA_SPICEHTML5PROXY_PORT" NOVA_SPICEHTML5PROXY_PORT
    check_port nova-serialproxy "$NOVA_SERIALPROXY_PORT" NOVA_SERIALPROXY_PORT
    finish_task nova-database "Nova's database"
    prepare_hosts
    if neutron_wanted; then prepare_neutron_of_hosts; fi
    start_task nova-services start_nova_services
}

finish_nova() {
    step "Nova"
    finish_task nova-services "Nova's services"
    start_hosts
    if neutron_wanted; then start_neutron_of_hosts; fi
    wait_for_nova
    wait_for_hosts
    start_task nova-status check_nova
}

check_port() { # SERVICE PORT OPTION: fail if another program uses the port
    if port_in_use "$2" && ! supervisorctl status "$1" 2> /dev/null | grep RUNNING > /dev/null; then
        die "another program uses port $2, which $1 needs; set $3 in local.conf to a different port"
    fi
}

print_usage() {
    local prefix="" # the printed commands need DATA_DIR if it is not the default directory
    [ "$DATA_DIR" = "$DEFAULT_DATA_DIR" ] || prefix="DATA_DIR=$DATA_DIR "
    step "Done"
    cat <<- TEXT
	Use the cloud:
	  source $DATA_DIR/openrc          (openrc-demo: a user without the admin role)
	  nova list                        (or: openstack server list)
	  nova boot --image nova-guest --flavor cirros256 --key-name stack --poll my-server
	  nova console-log my-server
	  openstack console url show my-server   (graphical console in a browser)

	Status page: http://$SERVICE_HOST:$NOVA_API_PORT/status  (token: openstack token issue -f value -c id)
	Services:    $prefix$DEVSTACK_DIR/stackctl status | logs NAME [-f] | restart NAME
	Uninstall:   $prefix$DEVSTACK_DIR/unstack.sh
	TEXT
}

trap 'jobs -p | xargs -r kill 2> /dev/null || true' EXIT  # terminate background tasks on failure; the status of stack.sh stays
check_machine
load_options
prepare_data_dir
install_everything
start_infrastructure
start_identity_and_images
if cinder_wanted; then start_volumes; fi
if neutron_wanted; then start_network_service; fi
if is_true "$NOVA_ENABLED"; then
    finish_nova
    step "Flavors, key pair and network"
    create_cloud
    finish_task nova-status "nova-status upgrade check"
    step "The first server"
    boot_first_server
fi
print_usage
