"""Compiles every Triton kernel for GPUs that need not be there, and holds what it needs of them against limits.

``python -m kernelcheck`` prints registers, spills and shared memory of each kernel, type, shape and target.
"""
