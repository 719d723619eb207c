"""Blocks that stream between the host and the device, with the optimizer in backward."""
