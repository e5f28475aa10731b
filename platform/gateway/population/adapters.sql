-- Adapters, each with one to three versions that are ready, and some with a rejected one.

CREATE TEMP TABLE population_adapter ON COMMIT DROP AS
SELECT i, pg_temp.skewed(%(tenants)s) AS tenant, 1 + i %% 3 AS versions,
       now() - make_interval(days => %(days)s) + make_interval(secs => i::float / %(adapters)s) AS at,
       ('{support,summary,tone,triage,legal,medical,search,sql,style,voice,intent,grammar}'::text[])[1 + i %% 12]
           || '-' || i AS name
  FROM generate_series(1, %(adapters)s) AS i;

INSERT INTO tenants_adapter (tenant_id, name, base_model_id, canary_percent, auto_promote, pinned, created_at, deleted_at)
SELECT t.id, a.name, base.ids[1 + a.i %% cardinality(base.ids)], 0, a.i %% 5 > 0, a.i %% 200 = 0, a.at,
       CASE WHEN a.i %% 50 = 49 THEN now() END
  FROM population_adapter a
  JOIN population_tenant t ON t.n = a.tenant
 CROSS JOIN (SELECT array_agg(id ORDER BY id) AS ids FROM tenants_basemodel) AS base;

INSERT INTO tenants_adapterversion
    (adapter_id, number, state, digest, report, spec, num_bytes, stored_bytes, tries, created_at, checked_at)
SELECT x.id, number, found.state, CASE found.state WHEN 'ready' THEN encode(pg_temp.random_bytes(), 'hex') ELSE '' END,
       CASE found.state WHEN 'ready' THEN '{}'::jsonb ELSE
           '{"message": "adapter_config.json: r has to be between 1 and 256.", "field": "adapter_config.json",
             "problems": [{"message": "r has to be between 1 and 256.", "field": "adapter_config.json", "advice": null}]}'
       END,
       CASE found.state WHEN 'ready' THEN
           '{"dtype": "BF16", "max_rank": 8, "targets": [
               {"module": "model.layers.0.self_attn.q_proj", "rank": 8, "scaling": 2.0, "dora": false},
               {"module": "model.layers.0.self_attn.v_proj", "rank": 8, "scaling": 2.0, "dora": false}]}'::jsonb
       ELSE '{}' END,
       4000000 + number * 1024, 4010000 + number * 1024, 1, a.at, a.at + interval '2 seconds'
  FROM population_adapter a
  JOIN population_tenant t ON t.n = a.tenant
  JOIN tenants_adapter x ON x.tenant_id = t.id AND x.name = a.name
 CROSS JOIN LATERAL generate_series(1, a.versions + (a.i %% 20 = 0)::int) AS number
 CROSS JOIN LATERAL (SELECT CASE WHEN number > a.versions THEN 'rejected' ELSE 'ready' END AS state) AS found;

INSERT INTO tenants_activation (tenant_id, version_id, state, report, tries, tried_at, created_at)
SELECT x.tenant_id, v.id, 'passed',
       '{"passed": true, "message": "The adapter changes the model; no references were sent."}', 1, v.checked_at, v.created_at
  FROM tenants_adapterversion v JOIN tenants_adapter x ON x.id = v.adapter_id WHERE v.state = 'ready';

WITH made AS MATERIALIZED (
    SELECT pg_temp.uuid_of(v.checked_at) AS id, x.tenant_id, v.adapter_id, v.number, v.id AS version_id, v.checked_at AS at
      FROM tenants_adapterversion v JOIN tenants_adapter x ON x.id = v.adapter_id WHERE v.state = 'ready'
)
INSERT INTO tenants_release
    (id, tenant_id, adapter_id, number, kind, version_id, canary_percent, previous_id, made_by, made_at)
SELECT id, tenant_id, adapter_id, number, 'automatic', version_id, 0,
       lag(id) OVER (PARTITION BY adapter_id ORDER BY number), 'system intake', at
  FROM made;

UPDATE tenants_adapter a
   SET current_id = v.id
  FROM (SELECT DISTINCT ON (adapter_id) adapter_id, id
          FROM tenants_adapterversion WHERE state = 'ready' ORDER BY adapter_id, number DESC) AS v
 WHERE v.adapter_id = a.id;

INSERT INTO tenants_adapterallowance (tenant_id, adapter_id, created_at)
SELECT DISTINCT ON (t.id, a.id) t.id, a.id, now()
  FROM (SELECT a.*, pg_temp.skewed(%(tenants)s) AS n FROM tenants_adapter a WHERE a.id %% 20 = 0 AND a.deleted_at IS NULL) AS a
  JOIN population_tenant t ON t.n = a.n AND t.id <> a.tenant_id;
