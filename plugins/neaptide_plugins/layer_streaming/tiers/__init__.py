"""Where the weights and the optimizer's state of blocks are: in RAM, or on a disk."""
