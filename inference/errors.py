"""The worker's one exception tree.

::

    InferenceError              every error this package raises on purpose
    ├── ConfigError             the worker cannot start as configured
    │   └── UnsupportedModel    the architecture, quantisation or option is not implemented; the message names it
    ├── GrantRefused            no valid signed grant, or the request disagrees with it
    ├── InvalidRequest          the request itself is wrong; ``param`` names the field
    │   └── UnknownField        there is no such field
    ├── AdapterInvalid          the adapter's files are not acceptable; ``field`` names the file, key or tensor
    ├── AdapterNotFound         the content store holds no such digest
    ├── Overloaded              a bounded queue is full; ``retry_after`` in seconds
    ├── WorkerUnavailable       the worker cannot be reached, or broke off in mid-stream
    └── EngineDead              the core process has stopped
"""


class InferenceError(Exception):
    """Base of every error raised on purpose; ``str()`` is safe to show to an operator."""


class ConfigError(InferenceError):
    pass


class UnsupportedModel(ConfigError):
    pass


class GrantRefused(InferenceError):
    pass


class InvalidRequest(InferenceError):
    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownField(InvalidRequest):
    def __init__(self, field: str) -> None:
        super().__init__(f"Unknown field {field}", field)


class AdapterInvalid(InferenceError):
    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class AdapterNotFound(InferenceError):
    pass


class Overloaded(InferenceError):
    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WorkerUnavailable(InferenceError):
    pass


class EngineDead(InferenceError):
    pass
