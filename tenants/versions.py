"""One version of an adapter by its number, ``<tenant>/<adapter>@<number>``, whatever the name stands for now."""

from __future__ import annotations

import re

from tenants.access import Access, ServedModel, served
from tenants.db import Pool
from tenants.errors import ModelNotFound

_NAME = re.compile(r"(?:(?P<tenant>[^/@]+)/)?(?P<adapter>[^/@]+)@(?P<number>[1-9][0-9]{0,8})")

# Others than its owner get what the name stands for: a version that was not promoted is nobody else's business. What
# the key or its member is kept from is left out as in :data:`tenants.access.MODELS`; admission looks again.
_VERSION = """
SELECT t.slug || '/' || d.name || '@' || v.number, b.id, b.directory, b.fingerprint, b.context_length, v.id, v.digest,
       extract(epoch FROM v.created_at)::bigint, NULL::integer, NULL::bigint, NULL::text
  FROM tenants_adapter d
  JOIN tenants_tenant t ON t.id = d.tenant_id
  JOIN tenants_adapterversion v ON v.adapter_id = d.id
  JOIN tenants_basemodel b ON b.id = d.base_model_id AND b.state = 'active'
  JOIN tenants_modelallowance a ON a.base_model_id = b.id AND a.tenant_id = d.tenant_id
  JOIN tenants_apikey k ON k.id = %(key)s
  LEFT JOIN tenants_member m ON m.id = k.member_id
 WHERE d.tenant_id = %(tenant)s AND d.name = %(adapter)s AND d.deleted_at IS NULL
   AND v.number = %(number)s AND v.state = 'ready' AND v.deleted_at IS NULL
   AND coalesce(d.id = ANY (k.only_adapters), true) AND coalesce(d.id = ANY (m.only_adapters), true)
"""


def is_version(name: str) -> bool:
    """Whether ``name`` asks for one version; an adapter's own name holds no ``@``."""
    return "@" in name


async def version_of(pool: Pool, access: Access, name: str) -> ServedModel:
    """The version of one of the caller's own adapters, if it is ready and the key may use the adapter.

    Raises :class:`~tenants.errors.ModelNotFound` otherwise, and ``psycopg`` errors when the database cannot be asked.
    """
    found = _NAME.fullmatch(name)
    if found is None or found["tenant"] not in (None, access.tenant) or "\0" in name:
        raise ModelNotFound(name)
    wanted = {
        "tenant": access.tenant_id,
        "key": access.key_id,
        "adapter": found["adapter"],
        "number": int(found["number"]),
    }
    async with pool.connection() as connection:
        row = await (await connection.execute(_VERSION, wanted)).fetchone()
    if row is None:
        raise ModelNotFound(name)
    return served(row)
