-- What else lists are made of. In proportion to the tenants; over the same days as the requests.

INSERT INTO tenants_denial
    (tenant_id, key_id, hour, code, "limit", subject, count, last_at, last_request_id, last_model, last_message)
SELECT t.id, k.id, date_trunc('hour', d.at, 'UTC'), d.code, d.limit_name, 'tenant', 1 + floor(random() * 50), d.at,
       pg_temp.uuid_of(d.at), b.name, 'Your account''s limit ' || d.limit_name || ' is reached.'
  FROM (
    SELECT i, pg_temp.skewed(%(tenants)s) AS n, now() - random() * make_interval(days => %(days)s) AS at,
           ('{rate_limit_exceeded,quota_exceeded,concurrency_limit_exceeded}'::text[])[1 + i %% 3] AS code,
           ('{requests_per_minute,tokens_per_day,max_concurrent}'::text[])[1 + i %% 3] AS limit_name
      FROM generate_series(1, %(tenants)s * 20) AS i
  ) AS d
  JOIN population_tenant t ON t.n = d.n
  JOIN LATERAL (SELECT min(id) AS id FROM tenants_apikey WHERE tenant_id = t.id AND scope = 'inference') AS k ON true
 CROSS JOIN (SELECT min(name) AS name FROM tenants_basemodel) AS b
 WHERE k.id IS NOT NULL
ON CONFLICT DO NOTHING;

INSERT INTO tenants_auditentry (id, tenant_id, at, actor_kind, actor_name, address, action, subject, before, after)
SELECT pg_temp.uuid_of(e.at), t.id, e.at, 'member', 'person-' || e.n, '192.0.2.7',
       ('{key.issued,key.changed,tenant.changed,adapter.version_added,member.joined}'::text[])[1 + e.i %% 5],
       t.slug || '/' || e.i, '{}', '{"name": "imagined"}'
  FROM (
    SELECT i, pg_temp.skewed(%(tenants)s) AS n,
           now() - make_interval(secs => %(days)s * 86400.0 * (1 - i::float / (%(tenants)s * 50 + 1))) AS at
      FROM generate_series(1, %(tenants)s * 50) AS i
  ) AS e
  JOIN population_tenant t ON t.n = e.n
 ORDER BY e.at;

-- At most ten of a tenant's. The secrets are sealed under nothing: such a webhook can be looked at and given a new one.
INSERT INTO tenants_webhook (id, tenant_id, url, description, events, state, secret, created_at)
SELECT pg_temp.uuid_of(t.at), t.id, 'https://hooks.example.org/' || w.i, '', '{*}', 'paused', pg_temp.random_bytes(), t.at
  FROM (
    SELECT i, n, row_number() OVER (PARTITION BY n) AS place
      FROM (SELECT i, pg_temp.skewed(%(tenants)s) AS n FROM generate_series(1, %(tenants)s / 4) AS i) AS drawn
  ) AS w
  JOIN population_tenant t ON t.n = w.n
 WHERE w.place <= 10;

INSERT INTO tenants_webhookevent (id, tenant_id, type, data, created_at)
SELECT pg_temp.uuid_of(e.at), e.tenant_id, 'adapter.ready', '{"adapter": "imagined", "version": 1}', e.at
  FROM (
    SELECT t.tenant_id, now() - random() * make_interval(days => %(days)s) AS at
      FROM (SELECT DISTINCT tenant_id FROM tenants_webhook) AS t CROSS JOIN generate_series(1, 30)
  ) AS e;

INSERT INTO tenants_webhookdelivery (id, webhook_id, event_id, state, tries, next_try_at, created_at)
SELECT pg_temp.uuid_of(e.created_at), w.id, e.id, CASE WHEN random() < 0.9 THEN 'delivered' ELSE 'failed' END, 1,
       e.created_at, e.created_at
  FROM tenants_webhook w JOIN tenants_webhookevent e ON e.tenant_id = w.tenant_id;

INSERT INTO tenants_webhookattempt (tenant_id, delivery_id, at, milliseconds, status, error, answer)
SELECT w.tenant_id, d.id, d.created_at, 35, CASE d.state WHEN 'delivered' THEN 204 ELSE 500 END, '', ''
  FROM tenants_webhookdelivery d JOIN tenants_webhook w ON w.id = d.webhook_id;

INSERT INTO tenants_batch
    (id, tenant_id, key_id, endpoint, completion_window, input_file_id, metadata, status, errors, total, completed,
     failed, prompt_tokens, cached_tokens, completion_tokens, created_at, expires_at, in_progress_at, finalizing_at,
     completed_at, runner)
SELECT 'batch_' || replace(pg_temp.uuid_of(b.at)::text, '-', ''), t.id, k.id, '/v1/chat/completions', '24h',
       'file-' || replace(gen_random_uuid()::text, '-', ''), '{}', 'completed', '[]', 100, 98, 2, 12000, 4000, 20000,
       b.at, b.at + interval '24 hours', b.at + interval '2 seconds', b.at + interval '80 seconds',
       b.at + interval '82 seconds', ''
  FROM (
    SELECT pg_temp.skewed(%(tenants)s) AS n, now() - interval '1 hour' - random() * make_interval(days => %(days)s) AS at
      FROM generate_series(1, %(tenants)s * 2)
  ) AS b
  JOIN population_tenant t ON t.n = b.n
  JOIN LATERAL (SELECT min(id) AS id FROM tenants_apikey WHERE tenant_id = t.id AND scope = 'inference') AS k ON true
 WHERE k.id IS NOT NULL;

-- Disabled: nobody asks them, and nothing is sent to them.
INSERT INTO fleet_worker (name, url, base_model_id, dialect, state, created_at)
SELECT 'imagined-' || i, 'http://imagined-' || i || '.invalid:8000', b.id, 'native', 'disabled', now()
  FROM generate_series(1, 8) AS i CROSS JOIN (SELECT min(id) AS id FROM tenants_basemodel) AS b;

-- A day's samples of each, as many as are kept.
INSERT INTO fleet_workersample (worker_id, at, problem, report)
SELECT w.id, now() - make_interval(secs => 30.0 * i), 'No such address.', '{}'
  FROM fleet_worker w CROSS JOIN generate_series(1, 2879) AS i
 WHERE w.state = 'disabled' AND w.name LIKE 'imagined-%%';
