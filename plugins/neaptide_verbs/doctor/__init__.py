"""`neaptide doctor`: report the state of installation and machine, with advice on problems."""
