"""`neaptide kernels`: the ops, their providers, and how fast they are and could be."""
