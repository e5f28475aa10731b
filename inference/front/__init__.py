"""The front: the worker's HTTP process. It speaks vLLM's dialect and verifies grants; it never sees a tensor."""
