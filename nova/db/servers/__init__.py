"""Queries for servers, their actions, groups, migrations, consoles and passwords."""
