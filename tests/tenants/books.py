"""A plain model of admission and the ledger: every sum is taken anew over the whole list of requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from fractions import Fraction
from uuid import UUID

LEASE = timedelta(seconds=30)
PRICE = (300_000, 100_000, 700_001)
"""Input, cached input, output: micro-units per million tokens."""


def cost(prompt: int, cached: int, completion: int) -> int:
    total = (prompt - cached) * PRICE[0] + cached * PRICE[1] + completion * PRICE[2]
    return -(-total // 1_000_000)


def month_of(day: date) -> tuple[int, int]:
    return day.year, day.month


@dataclass
class Request:
    key: str
    prompt: int
    output: int
    admitted_at: datetime
    lease: datetime
    emitted: int = 0
    cached: int = 0
    settled: tuple[int, int, int] | None = None  # prompt, cached, completion

    @property
    def tokens(self) -> int:
        return self.prompt + self.output if self.settled is None else self.settled[0] + self.settled[2]

    @property
    def cost(self) -> int:
        return cost(self.prompt, 0, self.output) if self.settled is None else cost(*self.settled)


@dataclass
class Bucket:
    level: Fraction | None = None  # None: full
    at: datetime | None = None
    charged: set[UUID] = field(default_factory=set)

    def now(self, limit: int, clock: datetime) -> Fraction:
        if self.level is None or self.at is None:
            return Fraction(limit)
        seconds = min(max(clock - self.at, timedelta(0)), timedelta(seconds=60)) / timedelta(microseconds=1)
        return min(Fraction(limit), self.level + Fraction(int(seconds) * limit, 60_000_000))

    def take(self, limit: int | None, amount: int, clock: datetime, request: UUID) -> None:
        if limit is None:
            self.level, self.charged = None, set()
        else:
            self.level = self.now(limit, clock) - amount
            self.charged.add(request)
        self.at = clock

    def give_back(self, amount: int, request: UUID) -> None:
        if self.level is not None and request in self.charged:
            self.level += amount


@dataclass
class Subject:
    """Limits by name, as in the database."""

    keys: set[str]
    limits: dict[str, int]
    requests: Bucket = field(default_factory=Bucket)
    tokens: Bucket = field(default_factory=Bucket)


class Books:
    def __init__(self, subjects: dict[str, Subject], context: int) -> None:
        self.subjects = subjects
        self.context = context
        self.requests: dict[UUID, Request] = {}

    def of(self, subject: Subject) -> list[Request]:
        return [request for request in self.requests.values() if request.key in subject.keys]

    def used(self, subject: Subject, clock: datetime) -> tuple[int, int, int]:
        """Tokens today, tokens this month, money this month."""
        mine, today = self.of(subject), clock.date()
        this_month = [r for r in mine if month_of(r.admitted_at.date()) == month_of(today)]
        return (
            sum(r.tokens for r in mine if r.admitted_at.date() == today),
            sum(r.tokens for r in this_month),
            sum(r.cost for r in this_month),
        )

    def running(self, subject: Subject, clock: datetime) -> int:
        return sum(r.settled is None and r.lease > clock for r in self.of(subject))

    def refusal(self, key: str, prompt: int, want: int, clock: datetime) -> set[str]:
        """The limit that refuses the request; several when they are equally tight; empty when it is admitted."""
        found: list[tuple[int, float, str]] = []
        for subject in self.subjects.values():
            if key in subject.keys:
                found += self._refusals(subject, prompt, want, clock)
        return {name for severity, wait, name in found if (severity, wait) == min(found)[:2]}

    def _refusals(self, subject: Subject, prompt: int, want: int, clock: datetime) -> list[tuple[int, float, str]]:
        limits = subject.limits
        day, month, money = self.used(subject, clock)
        checks = [
            ("tokens_per_minute", prompt + want),
            ("budget_hard", money + cost(prompt, 0, want)),
            ("tokens_per_month", month + prompt + want),
            ("tokens_per_day", day + prompt + want),
            ("max_concurrent", self.running(subject, clock) + 1),
        ]
        found = [(n, 0.0, name) for n, (name, amount) in enumerate(checks) if amount > limits.get(name, amount)]
        waits = []
        for name, bucket, amount in (
            ("requests_per_minute", subject.requests, 1),
            ("tokens_per_minute", subject.tokens, prompt + want),
        ):
            if name in limits and (missing := amount - bucket.now(limits[name], clock)) > 0:
                waits.append((9, -float(-(-missing * 60_000_000 // limits[name])), name))
        return found[:1] or waits

    def most(self, key: str, prompt: int, choices: int, clock: datetime) -> int:
        """The largest max_tokens that nobody refuses; found by trying."""
        fitting = 0
        while fitting < self.context - prompt and not self.refusal(key, prompt, (fitting + 1) * choices, clock):
            fitting += 1
        return fitting

    def admit(self, request_id: UUID, key: str, prompt: int, output: int, clock: datetime) -> None:
        self.requests[request_id] = Request(key, prompt, output, clock, clock + LEASE)
        for subject in self.subjects.values():
            if key in subject.keys:
                subject.requests.take(subject.limits.get("requests_per_minute"), 1, clock, request_id)
                subject.tokens.take(subject.limits.get("tokens_per_minute"), prompt + output, clock, request_id)

    def settle(self, request_id: UUID, prompt: int, cached: int, completion: int) -> bool:
        request = self.requests[request_id]
        if request.settled is not None:
            return False
        held = request.tokens
        request.settled = (prompt, cached, min(completion, request.output))
        for subject in self.subjects.values():
            if request.key in subject.keys:
                subject.tokens.give_back(held - request.tokens, request_id)
        return True

    def checkpoint(self, request_id: UUID, emitted: int, cached: int, clock: datetime) -> bool:
        request = self.requests[request_id]
        if request.settled is not None or request.lease <= clock + timedelta(seconds=1):
            return False
        request.emitted = min(max(request.emitted, emitted), request.output)
        request.cached = min(max(request.cached, cached), request.prompt)
        request.lease = clock + LEASE
        return True

    def reap(self, clock: datetime) -> int:
        expired = [name for name, r in self.requests.items() if r.settled is None and r.lease <= clock]
        for name in expired:
            request = self.requests[name]
            prompt, cached = (request.prompt, request.cached) if request.emitted else (0, 0)
            self.settle(name, prompt, cached, request.emitted)
        return len(expired)

    def sums(self, subject: Subject) -> tuple[int, int, int, int, int]:
        """Held tokens, held money; settled count, tokens, money."""
        mine = self.of(subject)
        held, settled = [r for r in mine if r.settled is None], [r for r in mine if r.settled is not None]
        return (
            sum(r.tokens for r in held),
            sum(r.cost for r in held),
            len(settled),
            sum(r.tokens for r in settled),
            sum(r.cost for r in settled),
        )
