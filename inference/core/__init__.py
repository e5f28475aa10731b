"""The core: the process that owns the device and runs ``schedule → run → postprocess``."""
