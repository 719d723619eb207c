"""Public building blocks for plugins and verbs, including those of other distributions."""
