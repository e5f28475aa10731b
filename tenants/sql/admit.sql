-- Admit one request, or say why not: every check, the lease and the hold in one transaction.
--
-- Lock order, for everything that writes these tables: the tenant's line (admissions only), a request's row, the
-- tenant's own account, its member's and key's accounts, the ledger. Nobody holds accounts of two tenants at once, and
-- an admission touches no request but its own new one; so nobody waits in a circle.
--
-- Admissions of one tenant stand in line, and each statement takes a fresh snapshot (READ COMMITTED): it sees what those
-- before it committed: keys revoked, allowlists changed, leases taken and given back. Settlements beside it only
-- free something, and both sides change accounts by sums and differences. That makes the limits exact with any number
-- of processes.
--
-- p_now is for tests; otherwise the clock is read in line, so that time never runs backwards along it, unless the clock
-- itself is set back. The day that requests count in does not go back even then: see tenants_standing.
-- A refusal writes nothing, unless the clock went back: then the accounts follow it, once.
-- Without p_patience the answer is `busy` where somebody else stands in line, or accounts have to be opened.
DROP FUNCTION IF EXISTS tenants_admit(uuid, uuid, bigint, bigint, bigint, integer, integer, interval, timestamptz);
DROP FUNCTION IF EXISTS tenants_decide(
    uuid, uuid, bigint, bigint, bigint, integer, integer, integer, interval, timestamptz
);

CREATE OR REPLACE FUNCTION tenants_decide(
    p_request_id uuid,
    p_tenant_id uuid,
    p_key_id bigint,
    p_base_model_id bigint,
    p_adapter_version_id bigint,
    p_prompt integer,
    p_max integer,                   -- output tokens of each choice; NULL: as many as fit
    p_choices integer,
    p_lease interval,
    p_now timestamptz DEFAULT NULL,
    p_patience boolean DEFAULT true,
    p_most integer DEFAULT NULL,     -- where p_max is NULL: no more than this of each choice
    OUT code text,                   -- NULL: admitted
    OUT subject text,                -- whose limit refused: tenant, member, key, or model
    OUT limit_name text,
    OUT limit_value bigint,
    OUT limit_left bigint,           -- what was left of it, in its own unit
    OUT retry_after_us bigint,       -- NULL: waiting does not help
    OUT max_tokens integer,          -- of each choice
    OUT cost bigint,                 -- held, micro-units
    OUT namespace text,
    OUT weight integer,
    OUT fingerprint text,
    OUT adapter_digest text,
    OUT limit_requests bigint,       -- of the subject with least left; NULL: unlimited
    OUT remaining_requests bigint,
    OUT reset_requests_us bigint,    -- until the bucket is full again
    OUT limit_tokens bigint,
    OUT remaining_tokens bigint,
    OUT reset_tokens_us bigint,
    OUT limit_concurrent bigint,
    OUT remaining_concurrent bigint,
    OUT over_soft_budget boolean
) LANGUAGE plpgsql AS $$
DECLARE
    unit constant bigint := 60000000;       -- of one request or token in a bucket: the microseconds of a minute
    clock timestamptz;
    counted timestamptz;                    -- when the request counts as admitted: the clock, or its accounts' day
    permit record;
    s record;                               -- where one subject stands
    want bigint := coalesce(p_max, 1)::bigint * p_choices;  -- output tokens without which there is no admission
    fits bigint;                            -- output tokens that fit below every limit
    afford bigint;
    severity integer;                       -- of one subject's refusal: 1 is the worst
    worst integer;
    name text;
    value bigint;
    remaining bigint;
    wait_us bigint;
    requests_units bigint;                  -- in the bucket with least in it
    tokens_units bigint;
    accounts bigint[];
    request_rates bigint[];
    token_rates bigint[];
BEGIN
    IF p_patience THEN
        PERFORM tenants_stand_in_line(p_tenant_id);
    ELSIF NOT tenants_is_first_in_line(p_tenant_id) THEN
        code := 'busy';
        RETURN;
    END IF;
    clock := coalesce(p_now, clock_timestamp());

    permit := tenants_permit(p_tenant_id, p_key_id, p_base_model_id, p_adapter_version_id, clock);
    code := permit.code;
    IF code IS NOT NULL THEN
        RETURN;
    END IF;

    fits := least(permit.context_length - p_prompt, p_most)::bigint * p_choices;
    over_soft_budget := false;
    FOR s IN SELECT * FROM tenants_standing(p_tenant_id, permit.member_id, p_key_id, clock) LOOP
        IF s.account_id IS NULL OR s.behind THEN
            IF NOT p_patience THEN
                code := 'busy';
                RETURN;
            END IF;
            PERFORM tenants_open_accounts(p_tenant_id, permit.member_id, p_key_id, clock);
            SELECT x.* INTO s FROM tenants_standing(p_tenant_id, permit.member_id, p_key_id, clock) x
             WHERE x.subject = s.subject;
        END IF;
        counted := s.counted_at;
        accounts := accounts || s.account_id;
        request_rates := request_rates || s.requests_per_minute;
        token_rates := token_rates || s.tokens_per_minute;

        -- What the answer's headers say, whether admitted or not: the least that anybody has left.
        IF requests_units IS NULL OR s.requests_units < requests_units THEN
            limit_requests := s.requests_per_minute;
            requests_units := s.requests_units;
        END IF;
        IF tokens_units IS NULL OR s.tokens_units < tokens_units THEN
            limit_tokens := s.tokens_per_minute;
            tokens_units := s.tokens_units;
        END IF;
        IF remaining_concurrent IS NULL OR s.max_concurrent - s.running < remaining_concurrent THEN
            limit_concurrent := s.max_concurrent;
            remaining_concurrent := greatest(s.max_concurrent - s.running, 0);
        END IF;

        afford := tenants_affordable(permit.price, s.budget_hard - s.month_cost, p_prompt);
        fits := least(
            fits, s.max_output_tokens, afford, s.tokens_per_month - s.month_tokens - p_prompt,
            s.tokens_per_day - s.day_tokens - p_prompt, s.tokens_units / unit - p_prompt
        );

        -- The worst reason of this subject: what no waiting mends first, then what takes longest.
        severity := NULL;
        wait_us := NULL;
        IF p_prompt > s.max_input_tokens THEN
            severity := 1; name := 'max_input_tokens'; value := s.max_input_tokens; remaining := value;
        ELSIF want > s.max_output_tokens THEN
            severity := 2; name := 'max_output_tokens'; value := s.max_output_tokens; remaining := value;
        ELSIF s.requests_per_minute = 0 THEN
            severity := 3; name := 'requests_per_minute'; value := 0; remaining := 0;
        ELSIF p_prompt + want > s.tokens_per_minute THEN
            severity := 3; name := 'tokens_per_minute'; value := s.tokens_per_minute;
            remaining := s.tokens_units / unit;
        ELSIF afford < want THEN
            severity := 4; name := 'budget_hard'; value := s.budget_hard;
            remaining := greatest(s.budget_hard - s.month_cost, 0);
        ELSIF s.tokens_per_month - s.month_tokens < p_prompt + want THEN
            severity := 5; name := 'tokens_per_month'; value := s.tokens_per_month;
            remaining := greatest(value - s.month_tokens, 0);
        ELSIF s.tokens_per_day - s.day_tokens < p_prompt + want THEN
            severity := 6; name := 'tokens_per_day'; value := s.tokens_per_day;
            remaining := greatest(value - s.day_tokens, 0);
        ELSIF s.running >= s.max_concurrent THEN
            severity := 7; name := 'max_concurrent'; value := s.max_concurrent; remaining := 0;
        ELSE
            wait_us := greatest(
                ceil(((p_prompt + want) * unit - s.tokens_units)::numeric / s.tokens_per_minute),
                ceil((unit - s.requests_units)::numeric / s.requests_per_minute)
            );
            IF wait_us > 0 THEN
                severity := 8;
                IF ceil((unit - s.requests_units)::numeric / s.requests_per_minute) = wait_us THEN
                    name := 'requests_per_minute'; value := s.requests_per_minute;
                    remaining := s.requests_units / unit;
                ELSE
                    name := 'tokens_per_minute'; value := s.tokens_per_minute;
                    remaining := s.tokens_units / unit;
                END IF;
            END IF;
        END IF;
        -- Of the same kind the tightest is named: the longest wait, else the least left.
        IF severity < coalesce(worst, 9)
           OR severity = worst AND coalesce(wait_us > retry_after_us, remaining < limit_left) THEN
            worst := severity;
            subject := split_part(s.subject, ':', 1);
            limit_name := name;
            limit_value := value;
            limit_left := remaining;
            retry_after_us := wait_us;
        END IF;
        over_soft_budget := over_soft_budget OR coalesce(s.month_cost >= s.budget_soft, false);
    END LOOP;

    IF (permit.context_length - p_prompt) < coalesce(p_max, 1) AND coalesce(worst, 9) > 1 THEN
        worst := 1;
        subject := 'model';
        limit_name := 'context_length';
        limit_value := permit.context_length;
        limit_left := greatest(permit.context_length - p_prompt, 0);
        retry_after_us := NULL;
    END IF;

    IF worst IS NULL THEN
        max_tokens := coalesce(p_max, fits / p_choices);
        want := max_tokens::bigint * p_choices;
        cost := tenants_cost(permit.price, p_prompt, 0, want);
        namespace := permit.namespace;
        weight := permit.weight;
        fingerprint := permit.fingerprint;
        adapter_digest := permit.adapter_digest;
        requests_units := requests_units - unit;
        tokens_units := tokens_units - (p_prompt + want) * unit;
        remaining_concurrent := remaining_concurrent - 1;
        FOR i IN 1 .. cardinality(accounts) LOOP
            PERFORM tenants_hold(accounts[i], request_rates[i], token_rates[i], p_prompt + want, cost, clock, counted);
        END LOOP;
        INSERT INTO tenants_inferencerequest
            (id, tenant_id, key_id, member_id, base_model_id, adapter_version_id, price_id, state, prompt_tokens,
             max_tokens, held_cost, emitted_tokens, admitted_at, lease_expires_at)
        VALUES (p_request_id, p_tenant_id, p_key_id, permit.member_id, p_base_model_id, p_adapter_version_id,
                (permit.price).id, 'running', p_prompt, want, cost, 0, counted, clock + p_lease);
    ELSE
        code := (ARRAY[
            'context_length_exceeded', 'max_output_tokens_exceeded', 'rate_limit_exceeded', 'insufficient_quota',
            'insufficient_quota', 'insufficient_quota', 'concurrency_limit_exceeded', 'rate_limit_exceeded'
        ])[worst];
        IF worst IN (4, 5) THEN
            retry_after_us := extract(epoch FROM
                (tenants_month(counted) + interval '1 month') AT TIME ZONE 'UTC' - clock) * 1000000;
        ELSIF worst = 6 THEN
            retry_after_us := extract(epoch FROM
                (tenants_day(counted) + 1)::timestamp AT TIME ZONE 'UTC' - clock) * 1000000;
        ELSIF worst = 8 THEN
            FOR i IN 1 .. cardinality(accounts) LOOP
                PERFORM tenants_refill_from(accounts[i], clock);
            END LOOP;
        END IF;
    END IF;
    remaining_requests := requests_units / unit;
    reset_requests_us := ceil((limit_requests * unit - requests_units)::numeric / nullif(limit_requests, 0));
    remaining_tokens := tokens_units / unit;
    reset_tokens_us := ceil((limit_tokens * unit - tokens_units)::numeric / nullif(limit_tokens, 0));
END
$$;

-- Where the clock went back, an account's buckets refill from now on, not only once it is as late as it was. An
-- admission sees to that by itself; a refusal has to, or an empty bucket would stay empty until then.
CREATE OR REPLACE FUNCTION tenants_refill_from(p_account_id bigint, p_clock timestamptz) RETURNS void LANGUAGE sql AS $$
    UPDATE tenants_account a
       SET requests_us = least(a.requests_us, now.us), tokens_us = least(a.tokens_us, now.us)
      FROM (SELECT (extract(epoch FROM p_clock) * 1000000)::bigint AS us) AS now
     WHERE a.id = p_account_id AND greatest(a.requests_us, a.tokens_us) > now.us
$$;

-- Takes a request's hold from one account. Sums and differences only: a settlement may be changing it too.
-- p_counted: NULL, from an admission that began before 0023 was installed, is the clock.
DROP FUNCTION IF EXISTS tenants_hold(bigint, bigint, bigint, bigint, bigint, timestamptz);

CREATE OR REPLACE FUNCTION tenants_hold(
    p_account_id bigint, p_request_rate bigint, p_token_rate bigint, p_tokens bigint, p_cost bigint,
    p_clock timestamptz, p_counted timestamptz DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    unit constant bigint := 60000000;
    clock_us constant bigint := (extract(epoch FROM p_clock) * 1000000)::bigint;
    today constant date := tenants_day(coalesce(p_counted, p_clock));
    this_month constant date := tenants_month(coalesce(p_counted, p_clock));
BEGIN
    UPDATE tenants_account a
       SET requests_level = tenants_refilled(a.requests_level, a.requests_us, p_request_rate, clock_us) - unit,
           requests_us = clock_us,
           tokens_level = tenants_refilled(a.tokens_level, a.tokens_us, p_token_rate, clock_us) - p_tokens * unit,
           tokens_us = clock_us,
           metered_from = CASE WHEN p_token_rate IS NOT NULL
                               THEN CASE WHEN a.tokens_level IS NULL THEN p_clock
                                         ELSE least(a.metered_from, p_clock) END END, -- the clock went back
           latest_day = greatest(a.latest_day, a.day, today),
           day = today,
           day_tokens = CASE WHEN a.day = today THEN a.day_tokens ELSE 0 END + p_tokens,
           month = this_month,
           month_tokens = CASE WHEN a.month = this_month THEN a.month_tokens ELSE 0 END + p_tokens,
           month_cost = CASE WHEN a.month = this_month THEN a.month_cost ELSE 0 END + p_cost,
           held_tokens = a.held_tokens + p_tokens,
           held_cost = a.held_cost + p_cost
     WHERE a.id = p_account_id;
END
$$;

-- As gateways from before 0026 call it: one request as one statement that does not wait for the disk.
CREATE OR REPLACE FUNCTION tenants_admit_async(
    p_request_id uuid,
    p_tenant_id uuid,
    p_key_id bigint,
    p_base_model_id bigint,
    p_adapter_version_id bigint,
    p_prompt integer,
    p_max integer,
    p_choices integer,
    p_lease interval,
    p_now timestamptz,
    OUT verdict json
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '5s', true), set_config('synchronous_commit', 'off', true);
    SELECT row_to_json(d) INTO verdict
      FROM tenants_decide(p_request_id, p_tenant_id, p_key_id, p_base_model_id, p_adapter_version_id, p_prompt, p_max,
                          p_choices, p_lease, p_now) d;
END
$$;

-- As gateways from before 0021 call it: durable when it returns.
CREATE OR REPLACE PROCEDURE tenants_admit(
    p_request_id uuid,
    p_tenant_id uuid,
    p_key_id bigint,
    p_base_model_id bigint,
    p_adapter_version_id bigint,
    p_prompt integer,
    p_max integer,
    p_choices integer,
    p_lease interval,
    p_now timestamptz,
    OUT verdict json
) LANGUAGE plpgsql AS $$
BEGIN
    verdict := tenants_admit_async(p_request_id, p_tenant_id, p_key_id, p_base_model_id, p_adapter_version_id, p_prompt,
                                   p_max, p_choices, p_lease, p_now);
    COMMIT;
    IF verdict ->> 'code' IS NULL THEN
        PERFORM tenants_make_durable();
    END IF;
END
$$;
