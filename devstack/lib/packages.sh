# shellcheck shell=bash
# Debian packages. Missing packages are installed without recommended packages and without starting their services.

python_packages() { # for the virtual environment; python3-libvirt, because building it from PyPI needs a compiler
    echo ca-certificates python3 python3-venv python3-libvirt
}

service_packages() {
    # message bus and token cache
    echo rabbitmq-server memcached
    # guests
    echo libvirt-daemon libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 qemu-utils genisoimage
    # guest consoles in a browser
    echo novnc
    ! spice_wanted || echo spice-html5
    # networks
    echo iproute2 nftables dnsmasq-base procps openssh-client
    # the guest image
    echo dropbear-bin e2fsprogs fdisk syslinux syslinux-common mtools cpio kmod
    ! neutron_wanted || neutron_packages
    case "$NOVA_DATABASE" in
        postgresql) echo postgresql ;;
        mysql) echo mariadb-server ;;
    esac
}

missing_packages() { # PACKAGE…: print the packages that are not installed
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2> /dev/null)" = installed ] || echo "$package"
    done
}

install_packages() { # PACKAGE…: install the missing packages
    local missing
    missing=$(missing_packages "$@")
    [ -n "$missing" ] || return 0
    # shellcheck disable=SC2086  # a list of packages
    note "to install:" $missing
    if [ -z "${APT_UPDATED:-}" ]; then
        run_logged apt-update "reading the package lists" apt-get -q -o DPkg::Lock::Timeout=300 update
        APT_UPDATED=yes
    fi
    # shellcheck disable=SC2086
    run_logged apt-install "installing packages" install_without_starting $missing
}

install_without_starting() { # PACKAGE…: the stack runs its own instances; the packages' services would use the same ports
    local policy=/usr/sbin/policy-rc.d
    export DEBIAN_FRONTEND=noninteractive
    if [ ! -e "$policy" ]; then
        printf '#!/bin/sh\n# temporary file of devstack/stack.sh: forbids to start services\nexit 101\n' > "$policy"
        chmod 755 "$policy"
        # shellcheck disable=SC2064  # expand the path now
        trap "rm -f $policy" EXIT
    fi
    apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$@"
}
