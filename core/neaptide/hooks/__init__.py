"""Everything about hooks: specs, manager, middleware, registry of plugins, order of plugins."""
