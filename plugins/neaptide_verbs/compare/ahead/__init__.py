"""What a comparison will train, and how long it takes, before it trains."""
