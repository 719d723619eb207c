"""Public building blocks for plugins and verbs (subcommands) of this and other distributions."""
