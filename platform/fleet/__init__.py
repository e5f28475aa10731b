"""Workers: which there are, how they are, and which of them takes a request."""
