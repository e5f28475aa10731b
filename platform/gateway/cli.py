"""The command line: ``manage.py`` in a checkout, ``loraplex`` where the wheel is installed."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run a management command. A malformed setting ends it with one sentence and exit status 2."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.conf import settings
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line

    try:
        settings.DATA_DIR  # noqa: B018 - loads the settings now, so that what is wrong with them is said first
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(_say(str(error), 2))


def _say(sentence: str, status: int) -> int:
    sys.stderr.write(f"{sentence}\n")
    return status
