"""Texts that are valid, or at the edge of it, for many parameters."""

TEXTS = (
    "", "a", "default", "a b", "x" * 255, "<&>\"'", "%2F../..", "..", "\u00e9\u4e2d\U0001f600", "-1", "tcp", "icmp",
    "10.0.0.0/8", "fd00::/8", "self", "true", "None", "0", "\u202e", "instance", "volume", "image", "snapshot", "tag:a",
    "*", "\ufffe", "\u2028", "/dev/vdb", "ephemeral0", "swap", "nova:host")
