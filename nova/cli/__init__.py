"""The nova command line of users and administrators: an HTTP client of the API, independent of the services.

Names and tables of commands are those of python-novaclient. A command is a function in ``nova/cli/resources`` or
``nova/cli/platform``; a decorator of ``declare`` describes its arguments and result. ``commands.COMMANDS`` and
``commands.PLATFORM`` map each command name to its module, so that only the module of the running command is imported.
The package needs the extra ``[cli]``.
"""
