-- How an admitted request ends: settle, checkpoint, reap. Lock order: see admit.sql.

-- Ends a running request: its one ledger entry, and what of its hold was not used given back. `held`: the output tokens
-- it held; NULL: it does not run (any more), and nothing happened. No more is charged than was held. An entry of nothing
-- is a void. The milliseconds are the request's own; NULL: nobody knows.
DROP FUNCTION IF EXISTS tenants_close(uuid, integer, integer, integer, text, text);

CREATE OR REPLACE FUNCTION tenants_close(
    p_request_id uuid,
    p_prompt integer,
    p_cached integer,
    p_completion integer,
    p_outcome text,
    p_finish_reason text,
    p_first_token_ms integer DEFAULT NULL,
    p_queue_ms integer DEFAULT NULL,
    p_prefill_ms integer DEFAULT NULL,
    OUT held integer
) LANGUAGE plpgsql AS $$
DECLARE
    r tenants_inferencerequest;
    price tenants_price;
    prompt bigint;
    cached bigint;
    used bigint;         -- tokens
    cost bigint;
BEGIN
    UPDATE tenants_inferencerequest q
       SET state = 'settled', settled_at = clock_timestamp(), emitted_tokens = least(p_completion, q.max_tokens),
           first_token_ms = p_first_token_ms, queue_ms = p_queue_ms, prefill_ms = p_prefill_ms
     WHERE q.id = p_request_id AND q.state = 'running'
    RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    held := r.max_tokens;
    prompt := least(p_prompt, r.prompt_tokens);
    cached := least(p_cached, prompt);
    used := prompt + r.emitted_tokens;
    IF r.price_id IS NOT NULL THEN
        SELECT * INTO price FROM tenants_price p WHERE p.id = r.price_id;
    END IF;
    cost := tenants_cost(price, prompt, cached, r.emitted_tokens);

    -- Two statements: see tenants_open_accounts.
    PERFORM tenants_give_back(r, 'tenant', used, cost);
    PERFORM tenants_give_back(r, x.subject, used, cost)
       FROM (VALUES ('member:' || r.member_id),
                    ('key:' || (SELECT k.line FROM tenants_apikey k WHERE k.id = r.key_id))) AS x (subject)
      WHERE x.subject IS NOT NULL;
    INSERT INTO tenants_ledgerentry
        (request_id, tenant_id, key_id, member_id, base_model_id, adapter_version_id, price_id, kind, prompt_tokens,
         cached_tokens, completion_tokens, cost, outcome, finish_reason, admitted_at, created_at)
    VALUES (r.id, r.tenant_id, r.key_id, r.member_id, r.base_model_id, r.adapter_version_id, r.price_id,
            CASE WHEN used = 0 THEN 'void' ELSE 'settle' END, prompt, cached, r.emitted_tokens, cost, p_outcome,
            p_finish_reason, r.admitted_at, r.settled_at);
END
$$;

-- Turns one account's hold on a request into what was used; the rest is there again, also in the token bucket (a level
-- above the limit is cut where it is read).
CREATE OR REPLACE FUNCTION tenants_give_back(r tenants_inferencerequest, p_subject text, p_used bigint, p_cost bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    held constant bigint := r.prompt_tokens::bigint + r.max_tokens;
BEGIN
    UPDATE tenants_account a
       SET held_tokens = a.held_tokens - held,
           held_cost = a.held_cost - r.held_cost,
           settled_count = a.settled_count + 1,
           settled_tokens = a.settled_tokens + p_used,
           settled_cost = a.settled_cost + p_cost,
           tokens_level = a.tokens_level
               + CASE WHEN r.admitted_at >= a.metered_from THEN (held - p_used) * 60000000 ELSE 0 END,
           day_tokens = a.day_tokens
               - CASE WHEN a.day = tenants_day(r.admitted_at) THEN held - p_used ELSE 0 END,
           month_tokens = a.month_tokens
               - CASE WHEN a.month = tenants_month(r.admitted_at) THEN held - p_used ELSE 0 END,
           month_cost = a.month_cost
               - CASE WHEN a.month = tenants_month(r.admitted_at) THEN r.held_cost - p_cost ELSE 0 END
     WHERE a.tenant_id = r.tenant_id AND a.subject = p_subject;
END
$$;

-- As gateways from before 0026 call it: one request as one statement that does not wait for the disk.
CREATE OR REPLACE FUNCTION tenants_settle_async(
    p_request_id uuid,
    p_prompt integer,
    p_cached integer,
    p_completion integer,
    p_outcome text,
    p_finish_reason text,
    p_first_token_ms integer,
    p_queue_ms integer,
    p_prefill_ms integer,
    OUT held integer
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '5s', true), set_config('synchronous_commit', 'off', true);
    held := tenants_close(p_request_id, p_prompt, p_cached, p_completion, p_outcome, p_finish_reason,
                          p_first_token_ms, p_queue_ms, p_prefill_ms);
END
$$;

-- As gateways from before 0022 call it: durable when it returns.
CREATE OR REPLACE PROCEDURE tenants_settle(
    p_request_id uuid,
    p_prompt integer,
    p_cached integer,
    p_completion integer,
    p_outcome text,
    p_finish_reason text,
    p_first_token_ms integer,
    p_queue_ms integer,
    p_prefill_ms integer,
    OUT held integer
) LANGUAGE plpgsql AS $$
BEGIN
    held := tenants_settle_async(p_request_id, p_prompt, p_cached, p_completion, p_outcome, p_finish_reason,
                                 p_first_token_ms, p_queue_ms, p_prefill_ms);
    COMMIT;
    PERFORM tenants_make_durable();
END
$$;

-- As gateways from before 0016 call it: while an upgrade lasts, some of them still run.
CREATE OR REPLACE PROCEDURE tenants_settle(
    p_request_id uuid,
    p_prompt integer,
    p_cached integer,
    p_completion integer,
    p_outcome text,
    p_finish_reason text,
    OUT held integer
) LANGUAGE plpgsql AS $$
BEGIN
    CALL tenants_settle(p_request_id, p_prompt, p_cached, p_completion, p_outcome, p_finish_reason,
                        NULL, NULL, NULL, held);
END
$$;

-- These requests are alive and have come so far: makes the counts durable and renews the leases. `stopped` names those
-- that have to end: {"<id>": "revoked" (key or a restriction), "suspended" (tenant) or "lost" (lease run out, settled,
-- unknown)}.
--
-- A lease with less than a second left is not renewed: while this transaction commits, an admission whose clock is past
-- the lease's end might give its place away. The clock is read once the rows are locked, and nothing waits after that.
CREATE OR REPLACE PROCEDURE tenants_checkpoint(
    p_ids uuid[], p_emitted integer[], p_cached integer[], p_lease interval, p_now timestamptz, OUT stopped json
) LANGUAGE plpgsql AS $$
DECLARE
    clock timestamptz;
    renewed uuid[];
BEGIN
    PERFORM set_config('lock_timeout', '5s', true), set_config('synchronous_commit', 'off', true);
    PERFORM 1 FROM tenants_inferencerequest r
      WHERE r.id = ANY (p_ids) AND r.state = 'running' ORDER BY r.id FOR NO KEY UPDATE;
    clock := coalesce(p_now, clock_timestamp());
    WITH alive AS (
        UPDATE tenants_inferencerequest r
           SET emitted_tokens = least(greatest(r.emitted_tokens, g.emitted), r.max_tokens),
               cached_tokens = least(greatest(r.cached_tokens, g.cached), r.prompt_tokens),
               lease_expires_at = clock + p_lease
          FROM unnest(p_ids, p_emitted, p_cached) AS g (id, emitted, cached)
         WHERE r.id = g.id AND r.state = 'running' AND r.lease_expires_at > clock + interval '1 second'
        RETURNING r.id
    )
    SELECT coalesce(array_agg(alive.id), '{}') INTO renewed FROM alive;
    SELECT coalesce(json_object_agg(found.id, found.reason), '{}') INTO stopped
      FROM (
        SELECT g.id, 'lost' AS reason FROM unnest(p_ids) AS g (id) WHERE g.id <> ALL (renewed)
        UNION ALL
        SELECT r.id, CASE WHEN t.state <> 'active' THEN 'suspended' ELSE 'revoked' END
          FROM tenants_inferencerequest r
          JOIN tenants_apikey k ON k.id = r.key_id
          JOIN tenants_tenant t ON t.id = r.tenant_id
          LEFT JOIN tenants_member m ON m.id = k.member_id
          LEFT JOIN tenants_adapterversion v ON v.id = r.adapter_version_id
         WHERE r.id = ANY (renewed)
           AND (t.state <> 'active' OR k.revoked_at IS NOT NULL OR k.expires_at <= clock
                OR CASE WHEN v.id IS NULL
                        THEN r.base_model_id <> ALL (k.only_models) OR r.base_model_id <> ALL (m.only_models)
                        ELSE v.adapter_id <> ALL (k.only_adapters) OR v.adapter_id <> ALL (m.only_adapters) END)
      ) AS found;
    COMMIT;
    PERFORM tenants_make_durable();
END
$$;

-- As gateways from before 0022 call it: what was cached, they say with the settlement only.
CREATE OR REPLACE PROCEDURE tenants_checkpoint(
    p_ids uuid[], p_emitted integer[], p_lease interval, p_now timestamptz, OUT stopped json
) LANGUAGE plpgsql AS $$
BEGIN
    CALL tenants_checkpoint(p_ids, p_emitted, array_fill(0, ARRAY[cardinality(p_ids)]), p_lease, p_now, stopped);
END
$$;

-- Ends requests whose lease has run out, at their last durable count; `reaped` counts them. Safe beside itself: a row
-- that somebody is settling is none of its business. Each in a transaction of its own, so that no two tenants'
-- accounts are ever locked together.
--
-- A request of which no token is known costs nothing, as a failure before the first token does: it may never have
-- reached a worker.
--
-- A lease of more than an hour was taken while the clock was ahead. It is cut to a minute: a gateway that lives renews
-- it within a second, and one that does not no longer keeps the place until the clock is there again.
CREATE OR REPLACE PROCEDURE tenants_reap(p_now timestamptz, p_batch integer, OUT reaped integer)
LANGUAGE plpgsql AS $$
DECLARE
    expired uuid[];
    r record;
BEGIN
    reaped := 0;
    UPDATE tenants_inferencerequest q
       SET lease_expires_at = coalesce(p_now, clock_timestamp()) + interval '1 minute'
     WHERE q.id = ANY (ARRAY(
        SELECT f.id FROM tenants_inferencerequest f
         WHERE f.state = 'running' AND f.lease_expires_at > coalesce(p_now, clock_timestamp()) + interval '1 hour'
         ORDER BY f.id FOR NO KEY UPDATE SKIP LOCKED
     ));
    COMMIT;
    expired := ARRAY(
        SELECT q.id FROM tenants_inferencerequest q
         WHERE q.state = 'running' AND q.lease_expires_at <= coalesce(p_now, clock_timestamp())
         ORDER BY q.id LIMIT p_batch
    );
    FOR i IN 1 .. cardinality(expired) LOOP
        PERFORM set_config('lock_timeout', '5s', true), set_config('synchronous_commit', 'off', true);
        SELECT q.id, q.prompt_tokens, q.cached_tokens, q.emitted_tokens INTO r FROM tenants_inferencerequest q
         WHERE q.id = expired[i] AND q.state = 'running'
           AND q.lease_expires_at <= coalesce(p_now, clock_timestamp()) FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            PERFORM tenants_close(r.id, CASE WHEN r.emitted_tokens > 0 THEN r.prompt_tokens ELSE 0 END,
                                  r.cached_tokens, r.emitted_tokens, 'abandoned', '');
            reaped := reaped + 1;
        END IF;
        COMMIT;
    END LOOP;
    IF reaped > 0 THEN
        PERFORM tenants_make_durable();
    END IF;
END
$$;
