"""What Neaptide's own kernels do in a dry run."""
