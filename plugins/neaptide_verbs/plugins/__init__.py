"""`neaptide plugins`: what is installed, what it can be told, and a distribution of your own."""
