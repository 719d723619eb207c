"""`neaptide export`: the trained model as files that other programs load."""
