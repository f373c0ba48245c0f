"""RPC endpoints for servers, server groups, migrations, actions and consoles."""
