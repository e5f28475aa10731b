-- Requests and how they ended, spread over the days with more by day than by night.

-- What each tenant calls with, and what it calls.
CREATE TEMP TABLE population_calls ON COMMIT DROP AS
SELECT t.n, k.keys, v.versions
  FROM population_tenant t
  JOIN (SELECT tenant_id, array_agg(id) AS keys FROM tenants_apikey WHERE scope = 'inference' GROUP BY 1) k
    ON k.tenant_id = t.id
  LEFT JOIN (SELECT x.tenant_id, array_agg(x.current_id) AS versions
               FROM tenants_adapter x WHERE x.current_id IS NOT NULL AND x.deleted_at IS NULL GROUP BY 1) v
    ON v.tenant_id = t.id;
ALTER TABLE population_calls ADD PRIMARY KEY (n);
ANALYZE population_calls;

CREATE TEMP TABLE population_price ON COMMIT DROP AS
SELECT DISTINCT ON (base_model_id) base_model_id, id
  FROM tenants_price
 WHERE plan_id IS NULL AND valid_from <= now() - make_interval(days => %(days)s)
 ORDER BY base_model_id, valid_from DESC;

-- Drawn once, then only joined: a random number in a join's condition would be drawn again for every row of it.
CREATE TEMP TABLE population_request ON COMMIT DROP AS
SELECT pg_temp.uuid_of(d.at) AS id, c.keys[pg_temp.skewed(cardinality(c.keys))] AS key_id,
       CASE WHEN d.on_adapter THEN c.versions[pg_temp.skewed(cardinality(c.versions))] END AS version_id,
       d.at, d.prompt, least(d.prompt, d.cached) AS cached, d.most, least(d.most, d.completion) AS completion,
       CASE WHEN d.end < 0.97 THEN 'completed' WHEN d.end < 0.985 THEN 'cancelled' WHEN d.end < 0.995 THEN 'failed'
            ELSE 'abandoned' END AS outcome
  FROM (
    SELECT i, pg_temp.skewed(%(tenants)s) AS n, random() < 0.6 AS on_adapter, random() AS end,
           now() - interval '10 minutes' - make_interval(secs => %(days)s * 86400.0 * (1 - moment.share)) AS at,
           floor(exp(3 + 4 * random()))::int AS prompt, (floor(random() * 2) * floor(random() * 30) * 16)::int AS cached,
           (256 * (1 + floor(random() * 4)))::int AS most, floor(exp(6.5 * random()))::int AS completion
      FROM generate_series(1, %(requests)s) AS i
     CROSS JOIN LATERAL (
        SELECT (i::float / %(requests)s) + 0.7 / (2 * pi() * %(days)s) * sin(2 * pi() * %(days)s * i / %(requests)s) AS share
     ) AS moment
  ) AS d
  JOIN population_calls c ON c.n = d.n
 ORDER BY d.at;

INSERT INTO tenants_inferencerequest
    (id, tenant_id, key_id, member_id, base_model_id, adapter_version_id, price_id, state, prompt_tokens, max_tokens,
     held_cost, emitted_tokens, admitted_at, lease_expires_at, settled_at, first_token_ms, queue_ms, prefill_ms)
SELECT r.id, k.tenant_id, k.id, k.member_id, m.id, r.version_id, p.id, 'settled', r.prompt, r.most,
       tenants_cost(p, r.prompt, 0, r.most), CASE r.outcome WHEN 'failed' THEN 0 ELSE r.completion END, r.at,
       r.at + interval '15 seconds', r.at + make_interval(secs => 0.2 + 0.02 * r.completion),
       time.queue + time.prefill + 5, time.queue, time.prefill
  FROM population_request r
  JOIN tenants_apikey k ON k.id = r.key_id
  LEFT JOIN tenants_adapterversion v ON v.id = r.version_id
  LEFT JOIN tenants_adapter x ON x.id = v.adapter_id
  JOIN tenants_basemodel m ON m.id = coalesce(x.base_model_id, (SELECT min(b.id) FROM tenants_basemodel b))
  LEFT JOIN population_price pp ON pp.base_model_id = m.id
  LEFT JOIN tenants_price p ON p.id = pp.id
  LEFT JOIN LATERAL (
    SELECT r.completion %% 40 AS queue, 10 + r.prompt / 10 AS prefill WHERE r.outcome <> 'failed'
  ) AS time ON true
 ORDER BY r.at;

INSERT INTO tenants_ledgerentry
    (request_id, tenant_id, key_id, member_id, base_model_id, adapter_version_id, price_id, kind, prompt_tokens,
     cached_tokens, completion_tokens, cost, outcome, finish_reason, admitted_at, created_at)
SELECT q.id, q.tenant_id, q.key_id, q.member_id, q.base_model_id, q.adapter_version_id, q.price_id,
       CASE r.outcome WHEN 'failed' THEN 'void' ELSE 'settle' END, used.prompt, used.cached, q.emitted_tokens,
       tenants_cost(p, used.prompt, used.cached, q.emitted_tokens), r.outcome,
       CASE WHEN r.outcome <> 'completed' THEN '' WHEN q.emitted_tokens = q.max_tokens THEN 'length' ELSE 'stop' END,
       q.admitted_at, q.settled_at
  FROM population_request r
  JOIN tenants_inferencerequest q ON q.id = r.id
 CROSS JOIN LATERAL (
    SELECT CASE r.outcome WHEN 'failed' THEN 0 ELSE r.prompt END AS prompt,
           CASE r.outcome WHEN 'failed' THEN 0 ELSE r.cached END AS cached
 ) AS used
  LEFT JOIN tenants_price p ON p.id = q.price_id
 ORDER BY q.settled_at;
