"""Two verbs for Neaptide: `losses`, and `size`, which is a subcommand of `ckpt`."""
