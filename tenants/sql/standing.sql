-- Where the limits of a tenant, and of the member and the key that call for it, stand at this moment.

-- Units in a rate bucket now; NULL: unlimited. A bucket whose level is NULL is full.
CREATE OR REPLACE FUNCTION tenants_refilled(level bigint, updated_us bigint, per_minute bigint, clock_us bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT least(
        per_minute * 60000000,
        coalesce(level, per_minute * 60000000) + per_minute * least(greatest(clock_us - updated_us, 0), 60000000)
    )
$$;

CREATE OR REPLACE FUNCTION tenants_day(clock timestamptz) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT (clock AT TIME ZONE 'UTC')::date
$$;

CREATE OR REPLACE FUNCTION tenants_month(clock timestamptz) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT date_trunc('month', clock AT TIME ZONE 'UTC')::date
$$;

-- One row for the tenant, then one for the member and one for the key if they have limits (or ever had: an account
-- that was opened is kept up to date). A key shares its account with all keys of its line: predecessors and successors. Every limit may be NULL: none. account_id is NULL until the account is opened.
--
-- counted_at: the time at which a request admitted now counts. It is the clock, but no earlier than the day that the
-- tenant's account has come to: a clock that is set back over midnight by some milliseconds would begin the day before
-- again, and forget what the new one had used. Buckets and leases go by the clock alone. Only the next day is kept to:
-- a clock that was ahead by more is a mistake, and should not hold up a tenant's days until its time comes. The sums of
-- an account that is then `behind` are 0 here, until tenants_open_accounts has added them up.
DROP FUNCTION IF EXISTS tenants_standing(uuid, bigint, bigint, timestamptz);

CREATE OR REPLACE FUNCTION tenants_standing(
    p_tenant_id uuid, p_member_id bigint, p_key_id bigint, p_clock timestamptz
) RETURNS TABLE (
    subject text,
    account_id bigint,
    requests_per_minute bigint,
    requests_units bigint,
    tokens_per_minute bigint,
    tokens_units bigint,
    max_concurrent bigint,
    running bigint,               -- NULL: not counted, since not limited
    tokens_per_day bigint,
    day_tokens bigint,
    tokens_per_month bigint,
    month_tokens bigint,
    budget_soft bigint,
    budget_hard bigint,
    month_cost bigint,
    max_input_tokens bigint,
    max_output_tokens bigint,
    counted_at timestamptz,
    behind boolean                -- its sums are of another day or month, and it may have used something in this one
) LANGUAGE sql STABLE AS $$
    WITH bound AS (
        SELECT 0 AS rank, 'tenant'::text AS subject, NULL::bigint AS member_id, NULL::bigint AS line,
               coalesce(t.requests_per_minute, p.requests_per_minute) AS requests_per_minute,
               coalesce(t.tokens_per_minute, p.tokens_per_minute) AS tokens_per_minute,
               coalesce(t.max_concurrent, p.max_concurrent) AS max_concurrent,
               coalesce(t.tokens_per_day, p.tokens_per_day) AS tokens_per_day,
               coalesce(t.tokens_per_month, p.tokens_per_month) AS tokens_per_month,
               coalesce(t.budget_soft, p.budget_soft) AS budget_soft,
               coalesce(t.budget_hard, p.budget_hard) AS budget_hard,
               coalesce(t.max_input_tokens, p.max_input_tokens) AS max_input_tokens,
               coalesce(t.max_output_tokens, p.max_output_tokens) AS max_output_tokens
          FROM tenants_tenant t JOIN tenants_plan p ON p.id = t.plan_id
         WHERE t.id = p_tenant_id
        UNION ALL
        SELECT 1, 'member:' || m.id, m.id, NULL, m.requests_per_minute, m.tokens_per_minute, m.max_concurrent,
               m.tokens_per_day, m.tokens_per_month, m.budget_soft, m.budget_hard, m.max_input_tokens,
               m.max_output_tokens
          FROM tenants_member m
         WHERE m.id = p_member_id AND m.tenant_id = p_tenant_id
        UNION ALL
        SELECT 2, 'key:' || k.line, NULL, k.line, k.requests_per_minute, k.tokens_per_minute, k.max_concurrent,
               k.tokens_per_day, k.tokens_per_month, k.budget_soft, k.budget_hard, k.max_input_tokens,
               k.max_output_tokens
          FROM tenants_apikey k
         WHERE k.id = p_key_id AND k.tenant_id = p_tenant_id
    )
    SELECT b.subject, a.id,
           b.requests_per_minute::bigint,
           tenants_refilled(a.requests_level, a.requests_us, b.requests_per_minute, now.us),
           b.tokens_per_minute::bigint,
           tenants_refilled(a.tokens_level, a.tokens_us, b.tokens_per_minute, now.us),
           b.max_concurrent::bigint,
           CASE WHEN b.max_concurrent IS NOT NULL THEN (
               SELECT count(*) FROM tenants_inferencerequest r
                WHERE r.tenant_id = p_tenant_id AND r.state = 'running' AND r.lease_expires_at > p_clock
                  AND (b.line IS NULL OR r.key_id IN (SELECT k.id FROM tenants_apikey k WHERE k.line = b.line))
                  AND (b.member_id IS NULL OR r.member_id = b.member_id)
           ) END,
           b.tokens_per_day,
           CASE WHEN a.day = tenants_day(now.counted) THEN a.day_tokens ELSE 0 END,
           b.tokens_per_month,
           CASE WHEN a.month = tenants_month(now.counted) THEN a.month_tokens ELSE 0 END,
           b.budget_soft, b.budget_hard,
           CASE WHEN a.month = tenants_month(now.counted) THEN a.month_cost ELSE 0 END,
           b.max_input_tokens::bigint,
           b.max_output_tokens::bigint,
           now.counted,
           coalesce(
               a.day <> tenants_day(now.counted) AND tenants_day(now.counted) <= greatest(a.day, a.latest_day)
               OR a.month <> tenants_month(now.counted) AND tenants_month(now.counted) <= greatest(a.day, a.latest_day),
               false
           )
      FROM (bound b LEFT JOIN tenants_account a ON a.tenant_id = p_tenant_id AND a.subject = b.subject)
     CROSS JOIN (
        SELECT (extract(epoch FROM p_clock) * 1000000)::bigint AS us,
               greatest(p_clock, (
                   SELECT t.day::timestamp AT TIME ZONE 'UTC' FROM tenants_account t
                    WHERE t.tenant_id = p_tenant_id AND t.subject = 'tenant' AND t.day = tenants_day(p_clock) + 1
               )) AS counted
        OFFSET 0 -- worked out once
     ) AS now
     WHERE b.rank = 0 OR a.id IS NOT NULL
        OR num_nonnulls(
            b.requests_per_minute, b.tokens_per_minute, b.max_concurrent, b.tokens_per_day, b.tokens_per_month,
            b.budget_soft, b.budget_hard, b.max_input_tokens, b.max_output_tokens
        ) > 0
     ORDER BY b.rank
$$;
