"""Queries of the Placement API. They read and change the rows of hosts (providers, inventories) and of claims."""
