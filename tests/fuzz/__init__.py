"""The fuzz suite: thousands of random requests of several roles. Run `tox -e fuzz`; CI runs a bounded part."""
