# shellcheck shell=bash
# libvirt: the libvirtd of the system if it is running, otherwise a libvirtd under the supervisor.

libvirt_responds() { virsh -c qemu:///system version; }

prepare_libvirt() { # set LIBVIRT_SERVICES to the programs to start: empty if libvirtd of the system is running
    LIBVIRT_SERVICES=()
    create_libvirt_account
    local definition=$DATA_DIR/etc/supervisor.d/libvirtd.conf
    if [ ! -e "$definition" ] && libvirt_responds > /dev/null 2>&1; then
        note "using the libvirtd that is already running"
        [ "$NOVA_HOSTS" = 1 ] || warn "live migration to this machine fails unless its libvirtd listens on $HOST_ADDRESS"
        return 0
    fi
    write_file "$DATA_DIR/etc/libvirt/libvirtd.conf" 644 <<- CONF
	unix_sock_rw_perms = "0700"
	auth_unix_rw = "none"
	log_outputs = "2:stderr"
	$(migration_listener)
	CONF
    open_kvm
    mkdir -p /run/libvirt /var/lib/libvirt /var/log/libvirt/qemu
    define_service virtlogd "/usr/sbin/virtlogd" priority=4
    define_service libvirtd "/usr/sbin/libvirtd$([ "$NOVA_HOSTS" = 1 ] || echo ' --listen') --config $DATA_DIR/etc/libvirt/libvirtd.conf" priority=5
    LIBVIRT_SERVICES=(virtlogd libvirtd)
}

migration_listener() { # print the options to accept migrations from additional hosts; guests cannot reach the address
    [ "$NOVA_HOSTS" -gt 1 ] || return 0
    printf '%s\n' "listen_tls = 0" "listen_tcp = 1" "listen_addr = \"$HOST_ADDRESS\"" 'auth_tcp = "none"'
}

create_libvirt_account() { # like the package libvirt-daemon-system, which is not installed because it requires systemd
    getent group kvm > /dev/null || groupadd --system kvm
    getent group libvirt-qemu > /dev/null || groupadd --system libvirt-qemu
    id libvirt-qemu > /dev/null 2>&1 ||
        useradd --system --gid kvm --groups libvirt-qemu --home-dir /var/lib/libvirt --no-create-home --shell /usr/sbin/nologin libvirt-qemu
}

open_kvm() { # set the mode as udev does: if only root can open /dev/kvm, each guest start takes seconds longer
    [ -c /dev/kvm ] && [ "$(stat -c %G%a /dev/kvm)" = root600 ] || return 0
    chgrp kvm /dev/kvm && chmod 660 /dev/kvm
}

wait_for_libvirt() {
    wait_for "libvirtd" "$DATA_DIR/logs/libvirtd.log" libvirt_responds
    note "libvirtd is up: $(virsh -c qemu:///system version | sed -n 's/^Running hypervisor: //p')"
}

choose_virt_type() { # set VIRT_TYPE; start a test guest under kvm, because /dev/kvm may exist but not work
    local host
    case "$LIBVIRT_TYPE" in
        qemu | kvm) VIRT_TYPE=$LIBVIRT_TYPE; return 0 ;;
    esac
    host=$(uname -r)-$(grep -m1 'model name' /proc/cpuinfo | md5sum | cut -c1-8)
    if ! grep -qs "^$host " "$DATA_DIR/stamps/virt_type"; then
        VIRT_TYPE=qemu
        if [ -c /dev/kvm ] && kvm_guest_starts; then VIRT_TYPE=kvm; fi
        set_stamp virt_type "$host $VIRT_TYPE"
    fi
    VIRT_TYPE=$(cut -d' ' -f2 "$DATA_DIR/stamps/virt_type")
}

kvm_guest_starts() { # true if the kernel of the guest image prints output within ten seconds
    local console=$DATA_DIR/run/kvm-probe.log pid status=1
    rm -f "$console"
    qemu-system-x86_64 -machine pc,accel=kvm -m 128 -display none -nodefaults -no-reboot -serial "file:$console" \
        -kernel "$DATA_DIR/images/vmlinuz" -initrd "$DATA_DIR/images/initrd.gz" -append 'console=ttyS0 nova.root=none' \
        > /dev/null 2>&1 &
    pid=$!
    for _ in $(seq 50); do
        if grep -aqs 'Linux version' "$console"; then status=0; break; fi
        kill -0 "$pid" 2> /dev/null || break
        sleep 0.2
    done
    kill -9 "$pid" 2> /dev/null || true
    wait "$pid" 2> /dev/null || true
    return "$status"
}

remove_guests() { # remove the guests with disks below DATA_DIR
    local domain xml pid
    if libvirt_responds > /dev/null 2>&1; then
        for domain in $(virsh -c qemu:///system list --all --uuid); do
            xml=$(virsh -c qemu:///system dumpxml "$domain" 2> /dev/null) || continue
            [[ $xml == *"$DATA_DIR/nova/"* ]] || continue
            virsh -c qemu:///system destroy "$domain" > /dev/null 2>&1 || true
            virsh -c qemu:///system undefine "$domain" --managed-save --nvram > /dev/null 2>&1 ||
                virsh -c qemu:///system undefine "$domain" > /dev/null 2>&1 || true
            note "removed guest $domain"
        done
    fi
    # Guests may still run without their libvirtd.
    for pid in $(pgrep -f "^[^ ]*qemu-system-[^ ]* .*$DATA_DIR/nova/" || true); do
        if kill -9 "$pid" 2> /dev/null; then note "killed guest process $pid"; fi
    done
}
