"""What a plugin may ask in a loop whose forwards and backwards are steps of their own."""

from neaptide.api.stash import StashKey

WAITING: StashKey[bool] = StashKey("waiting")
"""True while a forward that the user's code made waits for its backward. Others may follow it."""
