"""One step: its phases, the guard of a jump, the state it leaves and the learning rate."""
