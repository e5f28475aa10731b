from __future__ import annotations

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import BaseCommand

from gateway.diagnosis import examine


class Command(BaseCommand):
    help = (
        "Look at everything an installation needs and say what to do where something is wrong; exit status 1 then. "
        "Example: manage.py doctor --json"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")

    def handle(self, **options: Any) -> None:
        findings = examine()
        healthy = all(finding.ok for finding in findings)
        if options["json"]:
            self.stdout.write(json.dumps({"ok": healthy, "checks": [asdict(finding) for finding in findings]}))
        else:
            for finding in findings:
                self.stdout.write(f"{'ok  ' if finding.ok else 'BAD '} {finding.check}: {finding.found}")
                if finding.advice:
                    self.stdout.write(f"       → {finding.advice}")
        if not healthy:
            sys.exit(1)
