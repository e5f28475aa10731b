#!/usr/bin/env python
"""Django's command line, from a checkout. The console script ``loraplex`` is the same from anywhere."""

from gateway.cli import main

if __name__ == "__main__":
    main()
