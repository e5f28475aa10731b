class ServerFailed(Exception):
    """An embedded server cannot start. The message says why, and quotes the end of its log."""
