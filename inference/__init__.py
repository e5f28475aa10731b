"""The worker: one base model, many LoRA adapters, one batch.

Two processes share the work. The *front* speaks HTTP, verifies grants, tokenises and detokenises; the *core* owns the
device and runs ``schedule → run → postprocess``. They exchange the dataclasses of :mod:`inference.protocol`.

Four modules import neither torch nor the engine, and are the only ones that the control plane may import:
:mod:`inference.protocol`, :mod:`inference.client`, :mod:`inference.adapter_format` and :mod:`inference.prompt`.
"""
