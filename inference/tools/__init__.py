"""Functions that a model may call: asked for in OpenAI's words, written and read in the model's own.

Torch-free and without llguidance, so that whoever renders a prompt and writes the answer (the gateway, or the worker's
front) does it with the same code.
"""
