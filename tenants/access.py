"""Who is calling, and what they may use: from an API key to an :class:`Access`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from psycopg import AsyncConnection
from psycopg.rows import TupleRow

from tenants import keys
from tenants.db import Pool
from tenants.errors import InvalidKey, ModelNotFound


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A name that a key may put into ``model``.

    :param id: ``<base name>`` or ``<tenant>/<adapter>``, as ``/v1/models`` lists it.
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


@dataclass(frozen=True, slots=True)
class Access:
    """What one key may do, as it stood when it was read. :func:`tenants.admission.admit` checks all of it again."""

    key_id: int
    tenant_id: UUID
    tenant: str
    member_id: int | None
    models: Mapping[str, ServedModel]

    def resolve(self, name: str) -> ServedModel:
        """The model of this name; a bare adapter name is looked for within the caller's own tenant.

        Raises :class:`~tenants.errors.ModelNotFound`, in the same words whether it is somebody else's or nobody's.
        """
        found = self.models.get(name)
        if found is None and "/" not in name:
            found = self.models.get(f"{self.tenant}/{name}")
        if found is None:
            raise ModelNotFound(name)
        return found


_KEY = """
SELECT k.id, k.digest, k.pepper_version, k.member_id, t.id, t.slug,
       k.last_used_at IS NULL OR k.last_used_at < now() - interval '1 minute'
  FROM tenants_apikey k JOIN tenants_tenant t ON t.id = k.tenant_id
 WHERE (k.public_id = %(public)s OR k.id = %(id)s)
   AND k.revoked_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > now())
"""

# Base models on the tenant's allowlist, and on top of them its own adapters and those it was allowed; without what the
# key, or the member it belongs to, is kept from.
_MODELS = """
WITH caller AS (
    SELECT k.only_models, k.only_adapters, m.only_models AS member_models, m.only_adapters AS member_adapters
      FROM tenants_apikey k LEFT JOIN tenants_member m ON m.id = k.member_id
     WHERE k.id = %(key)s
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
       extract(epoch FROM b.created_at)::bigint
  FROM base b CROSS JOIN caller c
 WHERE coalesce(b.id = ANY (c.only_models), true) AND coalesce(b.id = ANY (c.member_models), true)
UNION ALL
SELECT t.slug || '/' || u.name, b.id, b.directory, b.fingerprint, b.context_length, v.id, v.digest,
       extract(epoch FROM v.created_at)::bigint
  FROM usable u
  JOIN base b ON b.id = u.base_model_id
  JOIN tenants_adapterversion v ON v.id = u.current_id AND v.state = 'ready'
  JOIN tenants_tenant t ON t.id = u.tenant_id
 CROSS JOIN caller c
 WHERE coalesce(u.id = ANY (c.only_adapters), true) AND coalesce(u.id = ANY (c.member_adapters), true)
 ORDER BY 1
"""

_TOUCH = "UPDATE tenants_apikey SET last_used_at = now() WHERE id = %s"


def _served(row: tuple[str, int, str, str, int, int | None, str | None, int]) -> ServedModel:
    name, base_model_id, directory, fingerprint, context_length, version, digest, created = row
    path = Path(directory)
    return ServedModel(name, base_model_id, path.name, fingerprint, path, context_length, version, digest, created)


async def authenticate(pool: Pool, secret: str) -> Access:
    """Read who holds this key. Not cached.

    A suspended tenant still authenticates, so that admission can say why its requests are refused.

    Raises :class:`~tenants.errors.InvalidKey` for every kind of wrong key, and ``psycopg.Error`` or
    ``psycopg_pool.PoolTimeout`` when the database cannot be asked.
    """
    parsed = keys.parse(secret)
    async with pool.connection() as connection:
        row = await (await connection.execute(_KEY, {"public": parsed.public_id, "id": None})).fetchone()
        if row is None:
            raise InvalidKey
        key_id, digest, pepper_version, member_id, tenant_id, slug, stale = row
        if not keys.matches(parsed.secret, bytes(digest), pepper_version):
            raise InvalidKey
        models = await _models(connection, tenant_id, key_id)
        if stale:
            await connection.execute(_TOUCH, (key_id,))
    return Access(key_id, tenant_id, slug, member_id, models)


async def access_of_key(pool: Pool, key_id: int) -> Access:
    """What a key may do now, for whoever proved earlier to hold it (a redeemed ticket). Raises as `authenticate`."""
    async with pool.connection() as connection:
        row = await (await connection.execute(_KEY, {"public": None, "id": key_id})).fetchone()
        if row is None:
            raise InvalidKey
        _, _, _, member_id, tenant_id, slug, _ = row
        models = await _models(connection, tenant_id, key_id)
    return Access(key_id, tenant_id, slug, member_id, models)


async def _models(connection: AsyncConnection[TupleRow], tenant_id: UUID, key_id: int) -> dict[str, ServedModel]:
    rows = await (await connection.execute(_MODELS, {"tenant": tenant_id, "key": key_id})).fetchall()
    return {model.id: model for model in map(_served, rows)}
