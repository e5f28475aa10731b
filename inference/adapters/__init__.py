"""Adapters' tensors: from a PEFT directory into host memory, and from there into the decoder's slots."""
