"""The decoder: one parametrised Llama-like model, its linears and its loader."""
