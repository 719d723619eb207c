"""Two verbs for Neaptide: `losses` and `size`. `size` is a subcommand of `ckpt`."""
