"""From a described server to libvirt's definition of its guest, and what a definition says."""
