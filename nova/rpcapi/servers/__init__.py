"""RPC interfaces for servers, server groups, migrations, actions and consoles."""
