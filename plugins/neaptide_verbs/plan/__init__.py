"""`neaptide plan`: whether a configuration fits a machine, and how fast it can be there."""
