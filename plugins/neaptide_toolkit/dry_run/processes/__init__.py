"""One of several processes in a dry run: its group has no others, and counts what they exchange."""
