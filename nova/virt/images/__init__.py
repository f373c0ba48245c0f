"""Images on a host: the cache, disk formats, qemu-img."""
