"""Who is calling, and what they may use: from an API key to an :class:`Access`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from tenants import addresses, keys
from tenants.db import Pool
from tenants.errors import Denied, Forbidden, InvalidKey, KeyEnded, ModelNotFound
from tenants.visits import Visit


@dataclass(frozen=True, slots=True)
class Canary:
    """Another version of an adapter, which answers ``percent`` of a hundred requests for its name."""

    percent: int
    adapter_version_id: int
    adapter_digest: str

    def takes(self, key: str) -> bool:
        """Whether it answers the request of this key. A key taken at some percentage is taken at every higher one."""
        hashed = blake2b(f"{self.adapter_version_id}:{key}".encode(), digest_size=8).digest()
        return int.from_bytes(hashed, "big") % 100 < self.percent


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that a key may put into ``model``.

    :param id: ``<base name>`` or ``<tenant>/<adapter>``, as ``/v1/models`` lists it; with ``@<number>`` one version.
    :param base: the name under which workers serve the base model: its store directory's name.
    :param created: Unix seconds.
    """

    id: str
    base_model_id: int
    base: str
    fingerprint: str
    model_dir: Path
    context_length: int
    adapter_version_id: int | None
    adapter_digest: str | None
    created: int
    canary: Canary | None = None


@dataclass(frozen=True, slots=True)
class Access:
    """What one key may do, as it stood when it was read. :func:`tenants.admission.admit` checks all of it again but
    the address.

    :param networks: where it may be used from; ``None``: anywhere.
    :param address: where its caller is; ``None``: nobody asked.
    :param visit: in which the caller is signed in, where it came with a playground's ticket.
    :param stores_payloads: its tenant wants prompts and answers stored: see :mod:`tenants.payloads`.
    :param suspended: its tenant was, when this was read; admission looks again.
    """

    key_id: int
    tenant_id: UUID
    tenant: str
    member_id: int | None
    models: Mapping[str, ServedModel]
    networks: tuple[addresses.Network, ...] | None = None
    address: str | None = None
    visit: Visit | None = None
    stores_payloads: bool = False
    suspended: bool = False

    def at(self, address: str | None) -> Access:
        """The same for a caller at this address (``None``: one without, which only an unrestricted key allows).

        Raises :class:`~tenants.errors.Denied` where the key may not be used from there.
        """
        if not addresses.allowed(self.networks, address):
            raise address_denied(address)
        return replace(self, address=address)

    def resolve(self, name: str, key: str | None = None) -> ServedModel:
        """The model of this name; a bare adapter name is looked for within the caller's own tenant.

        :param key: what decides between an adapter's current version and its canary: the same for requests that the
            same one has to answer. ``None``: the current version. A name with a version is not known here; see
            :mod:`tenants.versions`.

        Raises :class:`~tenants.errors.ModelNotFound`, in the same words whether it is somebody else's or nobody's.
        """
        found = self.models.get(name)
        if found is None and "/" not in name:
            found = self.models.get(f"{self.tenant}/{name}")
        if found is None:
            raise ModelNotFound(name)
        canary = found.canary
        if key is None or canary is None or not canary.takes(f"{self.tenant_id}:{key}"):
            return found
        return replace(
            found,
            adapter_version_id=canary.adapter_version_id,
            adapter_digest=canary.adapter_digest,
            canary=None,
        )


def address_denied(address: str | None) -> Denied:
    return Denied("address_not_allowed", f"This API key may not be used from {address or 'an unknown address'}.")


class _Row(NamedTuple):
    """A key as it is stored."""

    id: int
    digest: bytes
    pepper_version: int
    member_id: int | None
    tenant_id: UUID
    tenant: str
    stale: bool
    scope: str
    revoked: bool
    expired: bool
    allowed_addresses: Sequence[str] | None
    stores_payloads: bool
    suspended: bool

    def check(self) -> None:
        """Raises :class:`~tenants.errors.KeyEnded` and :class:`~tenants.errors.Forbidden`."""
        if self.revoked or self.expired:
            raise KeyEnded(self.tenant_id, self.id, "key_revoked" if self.revoked else "key_expired")
        if self.scope != "inference":
            raise Forbidden("This key is for managing what the tenant has. Inference needs a key of scope inference.")


_KEY = """
SELECT k.id, k.digest, k.pepper_version, k.member_id, t.id, t.slug,
       k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute', k.scope,
       k.revoked_at IS NOT NULL, k.expires_at IS NOT NULL AND k.expires_at <= now(), k.allowed_addresses,
       EXISTS (SELECT FROM tenants_payloadstoring p WHERE p.tenant_id = t.id), t.state <> 'active'
  FROM tenants_apikey k JOIN tenants_tenant t ON t.id = k.tenant_id
 WHERE k.public_id = %(public)s OR k.id = %(id)s
"""

MODELS = """
WITH caller AS (
    SELECT k.only_models, k.only_adapters, m.only_models AS member_models, m.only_adapters AS member_adapters
      FROM (SELECT) AS nobody
      LEFT JOIN tenants_apikey k ON k.id = %(key)s
      LEFT JOIN tenants_member m ON m.id = %(member)s
), base AS (
    SELECT m.* FROM tenants_basemodel m JOIN tenants_modelallowance a ON a.base_model_id = m.id
     WHERE a.tenant_id = %(tenant)s AND m.state = 'active'
), usable AS (
    SELECT d.* FROM tenants_adapter d WHERE d.tenant_id = %(tenant)s
    UNION ALL
    SELECT d.* FROM tenants_adapter d JOIN tenants_adapterallowance a ON a.adapter_id = d.id
     WHERE a.tenant_id = %(tenant)s AND d.tenant_id <> %(tenant)s
)
SELECT b.name, b.id, b.directory, b.fingerprint, b.context_length, NULL::bigint, NULL::text,
       extract(epoch FROM b.created_at)::bigint, NULL::integer, NULL::bigint, NULL::text
  FROM base b CROSS JOIN caller c
 WHERE coalesce(b.id = ANY (c.only_models), true) AND coalesce(b.id = ANY (c.member_models), true)
UNION ALL
SELECT t.slug || '/' || u.name, b.id, b.directory, b.fingerprint, b.context_length, v.id, v.digest,
       extract(epoch FROM v.created_at)::bigint, u.canary_percent::integer, c2.id, c2.digest
  FROM usable u
  JOIN base b ON b.id = u.base_model_id
  JOIN tenants_adapterversion v ON v.id = u.current_id AND v.state = 'ready' AND v.deleted_at IS NULL
  LEFT JOIN tenants_adapterversion c2 ON c2.id = u.canary_id AND c2.state = 'ready' AND c2.deleted_at IS NULL
  JOIN tenants_tenant t ON t.id = u.tenant_id
 CROSS JOIN caller c
 WHERE coalesce(u.id = ANY (c.only_adapters), true) AND coalesce(u.id = ANY (c.member_adapters), true)
 ORDER BY 1
"""
"""Base models on the tenant's allowlist, and on top of them its own adapters and those it was allowed; without what the
key or the member is kept from, where one is given.
"""

_USED = """
UPDATE tenants_apikey SET last_used_at = now()
 WHERE id = %s AND (last_used_at IS NULL OR last_used_at < now() - interval '1 minute')
"""

_REHASH = "UPDATE tenants_apikey SET digest = %s, pepper_version = %s WHERE id = %s AND pepper_version = %s"


def served(row: tuple[Any, ...]) -> ServedModel:
    """The model that a row in :data:`MODELS`' shape describes."""
    name, base_model_id, directory, fingerprint, context_length, version, digest, created, *split = row
    percent, canary_id, canary_digest = split
    canary = Canary(percent, canary_id, canary_digest) if percent and canary_id is not None else None
    path = Path(directory)
    return ServedModel(
        name, base_model_id, path.name, fingerprint, path, context_length, version, digest, created, canary
    )


async def authenticate(pool: Pool, secret: str) -> Access:
    """Read who holds this key. Not cached, and the address is not looked at: :meth:`Access.at` does.

    A suspended tenant still authenticates, so that admission can say why its requests are refused. A key whose digest
    was made with an older pepper gets one of the newest.

    Raises :class:`~tenants.errors.InvalidKey` for every kind of wrong key (:class:`~tenants.errors.KeyEnded` where the
    secret is right), :class:`~tenants.errors.Forbidden` for a key of another scope, and ``psycopg.Error`` or
    ``psycopg_pool.PoolTimeout`` when the database cannot be asked.
    """
    parsed = keys.parse(secret)
    async with pool.connection() as connection:
        row = await _row(connection, public=parsed.public_id)
        if row is None or not keys.matches(parsed.secret, bytes(row.digest), row.pepper_version):
            raise InvalidKey
        row.check()
        newest = keys.current_pepper()
        if row.pepper_version != newest:
            digest = keys.hash(parsed.secret, newest)
            await connection.execute(_REHASH, (digest, newest, row.id, row.pepper_version))
        return await _access(connection, row)


async def access_of_key(pool: Pool, key_id: int) -> Access:
    """What a key may do now, for whoever proved earlier to hold it (a redeemed ticket). Raises as `authenticate`."""
    async with pool.connection() as connection:
        row = await _row(connection, id=key_id)
        if row is None:
            raise InvalidKey
        row.check()
        return await _access(connection, row)


async def _row(
    connection: AsyncConnection[TupleRow], *, public: str | None = None, id: int | None = None
) -> _Row | None:
    found = await (await connection.execute(_KEY, {"public": public, "id": id})).fetchone()
    return None if found is None else _Row(*found)


async def _access(connection: AsyncConnection[TupleRow], row: _Row) -> Access:
    caller = {"tenant": row.tenant_id, "key": row.id, "member": row.member_id}
    found = await (await connection.execute(MODELS, caller)).fetchall()
    models = {model.id: model for model in map(served, found)}
    if row.stale:
        await connection.execute(_USED, (row.id,))
    within = addresses.networks(row.allowed_addresses)
    return Access(
        row.id,
        row.tenant_id,
        row.tenant,
        row.member_id,
        models,
        within,
        stores_payloads=row.stores_payloads,
        suspended=row.suspended,
    )
