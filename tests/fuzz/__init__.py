"""Requests by the thousand, from everybody: `tox -e fuzz`, of which CI runs a bounded part."""
