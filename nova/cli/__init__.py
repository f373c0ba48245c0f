"""nova: the command line of users and administrators, a client of the API over HTTP and of nothing else.

Names and tables of commands are those that python-novaclient's users know. A command is a function in
``nova/cli/resources`` that says with ``declare`` what it takes and what it returns; ``commands.COMMANDS`` names it, so
that only the module of the command at hand is loaded. It needs the extra ``[cli]``.
"""
