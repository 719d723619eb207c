"""What PyTorch computes otherwise on CUDA than on a CPU: attention, dropout, autocast."""
