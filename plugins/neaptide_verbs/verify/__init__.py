"""`neaptide verify`: a configuration's plugins against plain PyTorch, with the guilty by name."""
