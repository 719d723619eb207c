"""The formats YAML and JSON, entry points of the group `neaptide.formats`."""
