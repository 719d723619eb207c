"""What the benches of prediction share."""
