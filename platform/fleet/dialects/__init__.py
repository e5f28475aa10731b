"""One small file per kind of upstream server."""
