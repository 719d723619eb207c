"""`neaptide doctor`: what is installed, what the machine has, what is wrong, and the way out."""
