"""One step of training: phases, jumps (predicted updates), the loop's state, learning rate."""
