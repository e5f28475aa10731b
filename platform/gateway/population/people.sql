-- Tenants, members and keys; and the temporary functions that the further files use.

-- One of 1 … p_most, n with a weight of about 1/n.
CREATE FUNCTION pg_temp.skewed(p_most bigint) RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT least(p_most, floor(power(p_most + 1, random()))::bigint)
$$;

-- A UUIDv7 of that moment.
CREATE FUNCTION pg_temp.uuid_of(p_at timestamptz) RETURNS uuid LANGUAGE sql VOLATILE AS $$
    SELECT overlay(
        encode(substring(int8send((extract(epoch FROM p_at) * 1000)::bigint) FROM 3)
               || substring(uuid_send(gen_random_uuid()) FROM 7), 'hex') PLACING '7' FROM 13)::uuid
$$;

CREATE FUNCTION pg_temp.random_bytes() RETURNS bytea LANGUAGE sql VOLATILE AS $$
    SELECT sha256(uuid_send(gen_random_uuid()))
$$;

-- What population_* tables say is gone with the transaction.
CREATE TEMP TABLE population_tenant ON COMMIT DROP AS
SELECT n, pg_temp.uuid_of(at) AS id, at,
       words.first || '-' || words.second || '-' || n AS slug,
       initcap(words.first || ' ' || words.second) || ' ' || n AS name
  FROM generate_series(1, %(tenants)s) AS n
 CROSS JOIN LATERAL (
    SELECT now() - make_interval(days => %(days)s + 1) + make_interval(secs => n::float / %(tenants)s) AS at
 ) AS times
 CROSS JOIN LATERAL (
    SELECT ('{amber,bright,calm,early,green,hidden,northern,quiet,silver,western}'::text[])[1 + n %% 10] AS first,
           ('{bakery,bridge,clinic,foundry,harbour,library,mill,orchard,press,studio,works}'::text[])[1 + n %% 11]
               AS second
 ) AS words;
ALTER TABLE population_tenant ADD PRIMARY KEY (n);

INSERT INTO tenants_tenant (id, slug, display_name, state, plan_id, namespace, weight, created_at)
SELECT id, slug, name, CASE WHEN n > 1 AND n %% 97 = 0 THEN 'suspended' ELSE 'active' END, %(plan)s,
       replace(gen_random_uuid()::text, '-', ''), 1, at
  FROM population_tenant;

INSERT INTO tenants_modelallowance (tenant_id, base_model_id, created_at)
SELECT t.id, b.id, t.at FROM population_tenant t CROSS JOIN tenants_basemodel b;

-- An owner each, and as many others again.
CREATE TEMP TABLE population_member ON COMMIT DROP AS
SELECT row_number() OVER () AS n, tenant, role
  FROM (
    SELECT t.n AS tenant, 'owner' AS role FROM population_tenant t
     UNION ALL
    SELECT pg_temp.skewed(%(tenants)s), CASE WHEN i %% 3 = 0 THEN 'viewer' ELSE 'developer' END
      FROM generate_series(1, %(tenants)s) AS i
  ) AS found;

INSERT INTO auth_user (password, is_superuser, username, first_name, last_name, email, is_staff, is_active, date_joined)
SELECT '!' || encode(pg_temp.random_bytes(), 'hex'), false, 'person-' || m.n, '', '', 'person-' || m.n || '@example.org',
       false, true, t.at
  FROM population_member m JOIN population_tenant t ON t.n = m.tenant;

INSERT INTO tenants_member (public_id, tenant_id, user_id, role, created_at)
SELECT pg_temp.uuid_of(t.at), t.id, u.id, m.role, t.at
  FROM population_member m
  JOIN population_tenant t ON t.n = m.tenant
  JOIN auth_user u ON u.username = 'person-' || m.n;

INSERT INTO tenants_invitation (id, tenant_id, email, role, digest, created_at, expires_at)
SELECT pg_temp.uuid_of(now()), t.id, 'newcomer-' || i || '@example.org', 'developer', pg_temp.random_bytes(), now(),
       now() + interval '7 days'
  FROM generate_series(1, %(tenants)s / 4) AS i
  JOIN LATERAL (SELECT pg_temp.skewed(%(tenants)s + 0 * i) AS n) AS drawn ON true
  JOIN population_tenant t ON t.n = drawn.n;

-- A key each, and twice as many again; a tenth has limits of its own.
INSERT INTO tenants_apikey
    (tenant_id, member_id, name, scope, public_id, digest, pepper_version, created_at, expires_at, revoked_at,
     last_used_at, requests_per_minute, budget_hard)
SELECT t.id, m.id, ('{ci,staging,production,notebook,evaluation}'::text[])[1 + k.i %% 5] || '-' || k.i,
       CASE WHEN k.i > %(tenants)s AND k.i %% 20 = 19 THEN 'manage' ELSE 'inference' END, lpad(k.i::text, 12, '0'), pg_temp.random_bytes(),
       %(pepper)s, t.at, CASE WHEN k.i %% 7 = 0 THEN now() + interval '90 days' END,
       CASE WHEN k.i %% 11 = 0 THEN now() - interval '1 hour' END, now() - interval '10 minutes',
       CASE WHEN k.i %% 10 = 0 THEN 600 END, CASE WHEN k.i %% 10 = 0 THEN 1000000000000 END
  FROM (
    SELECT i, CASE WHEN i <= %(tenants)s THEN i ELSE pg_temp.skewed(%(tenants)s) END AS tenant
      FROM generate_series(1, %(tenants)s * 3) AS i
  ) AS k
  JOIN population_tenant t ON t.n = k.tenant
  LEFT JOIN tenants_member m ON m.tenant_id = t.id AND m.role = 'owner' AND k.i %% 2 = 0;
