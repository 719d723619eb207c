"""Public building blocks for plugins and verbs, those of other distributions included."""
