"""The one error of this package."""


class AttentionArgumentError(ValueError):
    """An argument has the wrong shape, type or range; raised before anything is computed.

    :ivar argument: which one.
    """

    def __init__(self, argument: str, message: str) -> None:
        super().__init__(f"{argument}: {message}")
        self.argument = argument
