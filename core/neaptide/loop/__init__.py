"""One step of training: its phases, the guard of a jump, its state and the learning rate."""
