"""Public building blocks for plugins and verbs. Other distributions can use these blocks, too."""
