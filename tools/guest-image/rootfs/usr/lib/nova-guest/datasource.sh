# Reads the metadata of the guest from the config drive, otherwise from the metadata service.
# read_datasource DIR writes to DIR, if available: hostname, instance_id, keys, user_data, admin_pass, source.
metadata_url=http://169.254.169.254

read_datasource() { # DIR
    read_config_drive "$1" || read_metadata_service "$1" || read_ec2_service "$1" ||
        echo "nova-guest: no metadata: neither a config drive nor a metadata service was found"
}

read_config_drive() { # DIR
    drive=$(findfs LABEL=config-2 2> /dev/null) || drive=$(findfs LABEL=CONFIG-2 2> /dev/null) || return 1
    mkdir -p /run/config-drive
    mount -o ro "$drive" /run/config-drive || return 1
    parse_meta_data "$1" /run/config-drive/openstack/latest/meta_data.json
    found=$?
    write_files "$1/flat" copy_from_drive
    [ -f /run/config-drive/openstack/latest/user_data ] && cp /run/config-drive/openstack/latest/user_data "$1/user_data"
    umount /run/config-drive
    [ "$found" = 0 ] && echo config-drive > "$1/source"
}

copy_from_drive() { # PATH FILE
    cp "/run/config-drive/$1" "$2"
}

fetch() { # PATH FILE: download; busybox's wget has no timeout option
    timeout 10 wget -q -O "$2" "$metadata_url/$1" 2> /dev/null && [ -s "$2" ]
}

read_metadata_service() { # DIR: retry for some seconds, because the service may start after the guest
    ip route get 169.254.169.254 > /dev/null 2>&1 || return 1
    for _ in 1 2 3 4 5 6; do
        if fetch openstack/latest/meta_data.json "$1/meta_data.json" && parse_meta_data "$1" "$1/meta_data.json"; then
            fetch openstack/latest/user_data "$1/user_data"
            write_files "$1/flat" fetch
            echo metadata-service > "$1/source"
            return 0
        fi
        sleep 1
    done
    return 1
}

read_ec2_service() { # DIR
    ip route get 169.254.169.254 > /dev/null 2>&1 || return 1
    fetch latest/meta-data/instance-id "$1/instance_id" || return 1
    fetch latest/meta-data/hostname "$1/hostname"
    fetch latest/meta-data/public-keys/0/openssh-key "$1/keys"
    fetch latest/user-data "$1/user_data"
    echo ec2 > "$1/source"
}

write_files() { # FLAT_META_DATA COMMAND: write the server's personality files with "COMMAND SOURCE_PATH TARGET_FILE"
    number=0
    while path=$(sed -n "s/^files\.$number\.path\t//p" "$1") && [ -n "$path" ]; do
        mkdir -p "$(dirname "$path")"
        "$2" "openstack$(sed -n "s/^files\.$number\.content_path\t//p" "$1")" "$path"
        number=$((number + 1))
    done
}

parse_meta_data() { # DIR META_DATA_JSON: write instance_id, hostname, admin_pass and keys to files in DIR
    awk -f /usr/lib/nova-guest/json.awk "$2" > "$1/flat" 2> /dev/null || return 1
    sed -n 's/^uuid\t//p' "$1/flat" > "$1/instance_id"
    sed -n 's/^hostname\t//p' "$1/flat" > "$1/hostname"
    sed -n 's/^admin_pass\t//p' "$1/flat" > "$1/admin_pass"
    sed -n 's/^public_keys\.[^\t]*\t//p' "$1/flat" | grep . > "$1/keys"
    [ -s "$1/instance_id" ]
}
