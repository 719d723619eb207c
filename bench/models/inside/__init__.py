"""Loops of other libraries, and the same with Neaptide inside, for `inside_trainers.py`."""
