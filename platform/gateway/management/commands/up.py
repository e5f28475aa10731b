from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from gateway import demo, installation
from gateway.embedded.errors import ServerFailed
from gateway.installation import CannotStart
from gateway.processes import Child, StopRequested, Supervisor
from inference.errors import InferenceError
from inference.fetch_model import fetch
from tenants import links


class Command(BaseCommand):
    help = (
        "Run everything on this machine: PostgreSQL and Valkey (unless DATABASE_URL and REDIS_URL name others), "
        "a worker, the gateway and Celery. Ctrl-C stops what it started. Example: manage.py up --demo"
    )
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--demo", action="store_true", help="seed demo tenants with example adapters")
        parser.add_argument("--json", action="store_true", help="say what happens as JSON objects, one a line")
        parser.add_argument("--no-worker", action="store_true", help="only registered workers elsewhere serve")

    def handle(self, **options: Any) -> None:
        self._json: bool = options["json"]
        try:
            installation.check_packages("uvicorn", "celery")
            if not options["no_worker"]:
                installation.check_packages("torch", "transformers", "safetensors")
            with installation.only_one():  # first: one that runs on this data has the port as well
                installation.check_port(settings.HOST, settings.PORT)
                self._run(demo_wanted=options["demo"], with_worker=not options["no_worker"])
        except (CannotStart, ServerFailed, InferenceError) as error:
            raise CommandError(str(error)) from None
        except OSError as error:
            raise CommandError(f"{error.filename or settings.DATA_DIR} cannot be used: {error.strerror}.") from None

    def _run(self, *, demo_wanted: bool, with_worker: bool) -> None:
        with Supervisor(self._say) as supervisor:
            try:
                self._start(supervisor, demo_wanted, with_worker)
                supervisor.watch()
            except StopRequested:
                self._say("\nStopping …")
            finally:
                links.forget_address()
        self._say("Stopped.")

    def _start(self, supervisor: Supervisor, demo_wanted: bool, with_worker: bool) -> None:
        self._say(f"Starting loraplex; data and logs are in {settings.DATA_DIR}")
        model_dir = fetch(
            store=settings.MODEL_STORE,
            downloads=settings.DOWNLOAD_DIR,
            source=settings.BASE_MODEL,
            say=self._say,
        )
        for name, server in installation.embedded_servers():
            supervisor.start(name, server)
        installation.check_database()
        installation.migrate()
        model = installation.register_model(model_dir)
        worker_port = settings.WORKER_PORT or installation.free_port()
        supervisor.start_together(self._children(model_dir, worker_port if with_worker else None))
        if with_worker:
            url = f"http://{installation.LOOPBACK}:{worker_port}"
            installation.quiet("register_worker", "--name", "local", "--url", url, "--model", model)
        seeded = demo.seed(model) if demo_wanted else None
        connections.close_all()
        base_url = f"http://{installation.reachable(settings.HOST)}:{settings.PORT}"
        links.remember_address(base_url)
        path = None if seeded is None else demo.write(seeded, base_url)
        if self._json:
            self._event("ready", url=base_url, model=model, demo=None if path is None else str(path))
        elif seeded is None or path is None:
            self._say(f"\nloraplex serves at {base_url}; Ctrl-C stops it.")
        else:
            self._say(demo.describe(seeded, base_url, path))

    def _children(self, model_dir: Path, worker_port: int | None) -> Iterator[Child]:
        if worker_port is not None:
            yield installation.worker(model_dir, worker_port)
        yield installation.celery()
        yield from map(installation.queue, installation.QUEUES)
        yield installation.beat()
        yield installation.gateway(settings.HOST, settings.PORT)

    def _say(self, line: str) -> None:
        if self._json:
            self._event("progress", message=line.strip())
            return
        self.stdout.write(line)
        self.stdout.flush()

    def _event(self, event: str, **facts: Any) -> None:
        self.stdout.write(json.dumps({"event": event, **facts}))
        self.stdout.flush()
