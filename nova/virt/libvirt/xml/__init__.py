"""Generation and parsing of libvirt domain XML."""
