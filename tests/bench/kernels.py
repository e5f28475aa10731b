"""``make bench-kernels``: our kernels for many adapters beside other ways of computing them. It checks, then times.

    python tests/bench/kernels.py [--quick] [--device cuda|cpu] [--model 8b 70b] [--site qkv …] [--rank 16 …]
        [--tokens 64 …] [--column ours …] [--dtype bfloat16] [--out FILE.csv]

Every column's delta is compared with float64 first, and once more as the CUDA graph that is timed: one that is wrong
is reported so, and not timed. ``--device cpu`` checks small shapes with Triton's interpreter and times nothing.
Exit status 1: our kernels were wrong somewhere; 2: there is no CUDA device.
"""

from __future__ import annotations

import os
import sys

# Scripts beside this one import transformers, which takes any module of this name for the hub's package ``kernels``.
# As a version it is too old for it, and importing it does nothing.
__version__ = "0"

if __name__ == "__main__":
    if any(argument in ("cpu", "--device=cpu") for argument in sys.argv[1:]):
        os.environ["TRITON_INTERPRET"] = "1"  # Triton looks when it is imported
    from kernel_run import main

    sys.exit(main())
