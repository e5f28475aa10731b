"""Pages: the chat, and later the operators' dashboard."""
