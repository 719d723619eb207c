"""Memory that PyTorch takes without its dispatcher: inside kernels of a CPU, and for generators.

The numbers were found by trying: they are those of oneDNN in PyTorch 2.13, on a processor with
AVX-512 and AMX.
"""
