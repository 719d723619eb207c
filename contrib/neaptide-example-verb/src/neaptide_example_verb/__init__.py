"""Two verbs for Neaptide: `losses`, and `size` below `ckpt`."""
