"""The one error of this package."""


class LinearArgumentError(ValueError):
    """An argument has the wrong shape, type, place or value; raised before anything is computed.

    :ivar argument: which one.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{argument}: {message}")
        self.argument = argument
