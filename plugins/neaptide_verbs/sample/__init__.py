"""`neaptide sample`: text of a trained language model."""
