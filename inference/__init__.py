"""The worker: one base model, many LoRA adapters, one batch.

Two processes share the work. The *front* speaks HTTP, verifies grants, tokenises and detokenises; the *core* owns the
device and runs ``schedule → run → postprocess``. They exchange the dataclasses of :mod:`inference.protocol`.

Of the rest, the control plane may import what needs neither torch nor the engine: :mod:`inference.protocol`,
:mod:`inference.client`, :mod:`inference.adapter_format`, :mod:`inference.base_shapes`, :mod:`inference.model_store` and
:mod:`inference.prompt`.
"""
