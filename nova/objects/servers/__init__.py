"""Objects for servers: instances, states, actions, orders, migrations, consoles."""
