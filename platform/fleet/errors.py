class FleetError(Exception):
    """Base of every error the fleet raises on purpose."""


class NoWorker(FleetError):
    """No worker that serves the model's fingerprint can take a request now; ``retry_after`` in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
