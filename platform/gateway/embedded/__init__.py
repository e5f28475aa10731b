"""PostgreSQL and Valkey from wheels, for one machine with nothing installed but Python.

Where they listen follows from the data directory alone, so that every process finds them without being told.
"""
