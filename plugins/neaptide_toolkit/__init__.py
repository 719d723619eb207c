"""What plugins and verbs are built from. Public: a stranger's build on it as ours do."""
