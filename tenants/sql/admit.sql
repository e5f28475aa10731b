-- Admit one request, or say why not: every check, the lease and the hold in one statement of one transaction.
--
-- Lock order, for everything that writes these tables: the tenant's tenants_ratebucket row first, then
-- tenants_inferencerequest rows by ascending id, then tenants_ledgerentry. settle, checkpoint and reap never take the
-- bucket, so they can only wait for an admission's new row, never the other way round.
--
-- The bucket row is locked first, so admissions of one tenant stand in line; each statement below then takes a fresh
-- snapshot (READ COMMITTED) and sees everything that those before it committed: keys revoked, allowlists changed,
-- leases taken and given back. That is what makes the limits exact with any number of processes.
--
-- An admission waits at most lock_timeout for its turn, then fails as a database error.
--
-- p_now is for tests; otherwise the clock is read after the lock, so that time never runs backwards along the line.
-- A refusal changes nothing: every write stands below the last check.
CREATE OR REPLACE FUNCTION tenants_admit(
    p_request_id uuid,
    p_tenant_id uuid,
    p_key_id bigint,
    p_base_model_id bigint,
    p_adapter_version_id bigint,
    p_prompt_tokens integer,
    p_max_tokens integer,
    p_lease interval,
    p_now timestamptz DEFAULT NULL,
    OUT code text,                   -- NULL: admitted
    OUT limit_name text,
    OUT limit_value integer,
    OUT retry_after_us bigint,
    OUT max_tokens integer,
    OUT namespace text,
    OUT weight integer,
    OUT fingerprint text,
    OUT adapter_digest text,
    OUT limit_requests integer,      -- NULL: unlimited
    OUT remaining_requests integer,
    OUT reset_requests_us bigint,    -- until the bucket is full again
    OUT limit_concurrent integer,
    OUT remaining_concurrent integer
) LANGUAGE plpgsql SET lock_timeout = '5s' AS $$
DECLARE
    cost constant bigint := 60000000;  -- units of one request: the microseconds of a minute
    bucket tenants_ratebucket;
    found_tenant record;
    found_model tenants_basemodel;
    clock timestamptz;
    clock_us bigint;
    units bigint;                      -- in the bucket now
    running integer;
    room integer;
    max_input integer;
    max_output integer;
BEGIN
    SELECT * INTO bucket FROM tenants_ratebucket b WHERE b.tenant_id = p_tenant_id FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO tenants_ratebucket (tenant_id, level, updated_us)
            SELECT t.id, NULL, 0 FROM tenants_tenant t WHERE t.id = p_tenant_id
            ON CONFLICT (tenant_id) DO NOTHING;
        SELECT * INTO bucket FROM tenants_ratebucket b WHERE b.tenant_id = p_tenant_id FOR UPDATE;
    END IF;
    clock := coalesce(p_now, clock_timestamp());
    clock_us := (extract(epoch FROM clock) * 1000000)::bigint;

    SELECT t.state, t.namespace, t.weight,
           coalesce(t.requests_per_minute, p.requests_per_minute) AS requests_per_minute,
           coalesce(t.max_concurrent, p.max_concurrent) AS max_concurrent,
           coalesce(t.max_input_tokens, p.max_input_tokens) AS max_input_tokens,
           coalesce(t.max_output_tokens, p.max_output_tokens) AS max_output_tokens,
           EXISTS (SELECT 1 FROM tenants_apikey k
                   WHERE k.id = p_key_id AND k.tenant_id = t.id AND k.revoked_at IS NULL
                     AND (k.expires_at IS NULL OR k.expires_at > clock)) AS key_is_good
      INTO found_tenant
      FROM tenants_tenant t JOIN tenants_plan p ON p.id = t.plan_id
     WHERE t.id = p_tenant_id;
    IF NOT FOUND OR NOT found_tenant.key_is_good THEN
        code := 'key_revoked';
        RETURN;
    END IF;
    IF found_tenant.state <> 'active' THEN
        code := 'tenant_suspended';
        RETURN;
    END IF;

    SELECT m.* INTO found_model
      FROM tenants_basemodel m JOIN tenants_modelallowance a ON a.base_model_id = m.id AND a.tenant_id = p_tenant_id
     WHERE m.id = p_base_model_id AND m.state = 'active';
    IF NOT FOUND THEN
        code := 'model_not_found';
        RETURN;
    END IF;
    IF p_adapter_version_id IS NOT NULL THEN
        SELECT v.digest INTO adapter_digest
          FROM tenants_adapterversion v JOIN tenants_adapter d ON d.id = v.adapter_id
         WHERE v.id = p_adapter_version_id AND v.state = 'ready' AND d.base_model_id = p_base_model_id
           AND (d.tenant_id = p_tenant_id
                OR EXISTS (SELECT 1 FROM tenants_adapterallowance a
                           WHERE a.adapter_id = d.id AND a.tenant_id = p_tenant_id));
        IF NOT FOUND THEN
            code := 'model_not_found';
            RETURN;
        END IF;
    END IF;

    -- What stands in the bucket and how many leases are alive; reported with refusals too.
    limit_requests := found_tenant.requests_per_minute;
    IF limit_requests IS NOT NULL THEN
        units := least(
            limit_requests * cost,
            coalesce(bucket.level, limit_requests * cost)
                + limit_requests * least(greatest(clock_us - bucket.updated_us, 0), cost)
        );
        remaining_requests := units / cost;
        reset_requests_us := ceil((limit_requests * cost - units)::numeric / limit_requests);
    END IF;
    limit_concurrent := found_tenant.max_concurrent;
    IF limit_concurrent IS NOT NULL THEN
        SELECT count(*) INTO running FROM tenants_inferencerequest r
         WHERE r.tenant_id = p_tenant_id AND r.state = 'running' AND r.lease_expires_at > clock;
        remaining_concurrent := greatest(limit_concurrent - running, 0);
    END IF;

    max_input := found_tenant.max_input_tokens;
    IF p_prompt_tokens > max_input THEN
        code := 'context_length_exceeded';
        limit_name := 'max_input_tokens';
        limit_value := max_input;
        RETURN;
    END IF;
    room := found_model.context_length - p_prompt_tokens;
    IF room < coalesce(p_max_tokens, 1) THEN
        code := 'context_length_exceeded';
        limit_name := 'context_length';
        limit_value := found_model.context_length;
        RETURN;
    END IF;
    max_output := found_tenant.max_output_tokens;
    IF p_max_tokens > max_output THEN
        code := 'max_output_tokens_exceeded';
        limit_name := 'max_output_tokens';
        limit_value := max_output;
        RETURN;
    END IF;
    IF running >= limit_concurrent THEN
        code := 'concurrency_limit_exceeded';
        limit_name := 'max_concurrent';
        limit_value := limit_concurrent;
        RETURN;
    END IF;
    IF units < cost THEN
        code := 'rate_limit_exceeded';
        limit_name := 'requests_per_minute';
        limit_value := limit_requests;
        retry_after_us := ceil((cost - units)::numeric / limit_requests);
        RETURN;
    END IF;

    -- Admitted. Nothing above this line wrote anything but an empty bucket.
    IF limit_requests IS NOT NULL THEN
        units := units - cost;
        UPDATE tenants_ratebucket b SET level = units, updated_us = greatest(bucket.updated_us, clock_us)
         WHERE b.tenant_id = p_tenant_id;
        remaining_requests := units / cost;
        reset_requests_us := ceil((limit_requests * cost - units)::numeric / limit_requests);
    END IF;
    IF limit_concurrent IS NOT NULL THEN
        remaining_concurrent := limit_concurrent - running - 1;
    END IF;
    max_tokens := coalesce(p_max_tokens, least(room, max_output));
    namespace := found_tenant.namespace;
    weight := found_tenant.weight;
    fingerprint := found_model.fingerprint;
    INSERT INTO tenants_inferencerequest
        (id, tenant_id, key_id, base_model_id, adapter_version_id, state, prompt_tokens, max_tokens, emitted_tokens,
         admitted_at, lease_expires_at)
    VALUES (p_request_id, p_tenant_id, p_key_id, p_base_model_id, p_adapter_version_id, 'running', p_prompt_tokens,
            tenants_admit.max_tokens, 0, clock, clock + p_lease);
END
$$;
