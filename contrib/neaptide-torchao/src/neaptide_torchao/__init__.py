"""Parts of torchao as plugins of Neaptide: `adamw` and `float8`."""
