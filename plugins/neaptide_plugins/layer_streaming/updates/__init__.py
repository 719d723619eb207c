"""What becomes of gradients: where they wait, how they are clipped, and the optimizer's step."""
