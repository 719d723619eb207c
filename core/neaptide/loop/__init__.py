"""One step of training: the phases, the guard of a jump, the loop's state, the learning rate."""
