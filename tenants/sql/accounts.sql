-- Accounts: running sums over the ledger and the holds of running requests, which can always be derived again.

-- Admissions of one tenant stand in line here, until their transaction ends. Not a row lock: a refusal writes nothing.
CREATE OR REPLACE FUNCTION tenants_stand_in_line(p_tenant_id uuid) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(p_tenant_id::text, 7082))
$$;

-- As above, but instead of waiting: false.
CREATE OR REPLACE FUNCTION tenants_is_first_in_line(p_tenant_id uuid) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT pg_try_advisory_xact_lock(hashtextextended(p_tenant_id::text, 7082))
$$;

-- What an account should say, from the ledger and the running requests alone. Of a key or member an index leads to the
-- entries of their keys: a new key of an old account has none, and its first admission reads none. Only of a member that
-- is there no more are all the account's looked at, since its keys forgot whose they were.
CREATE OR REPLACE FUNCTION tenants_derived(p_tenant_id uuid, p_subject text, p_day date, p_month date)
RETURNS TABLE (
    day_tokens bigint,
    month_tokens bigint,
    month_cost bigint,
    held_tokens bigint,
    held_cost bigint,
    settled_count bigint,
    settled_tokens bigint,
    settled_cost bigint
) LANGUAGE sql STABLE AS $$
    WITH keys AS (
        SELECT k.id FROM tenants_apikey k
         WHERE k.tenant_id = p_tenant_id
           AND ('key:' || k.line = p_subject OR 'member:' || k.member_id = p_subject
                OR p_subject LIKE 'member:%' AND NOT EXISTS (
                    SELECT FROM tenants_member m WHERE m.tenant_id = p_tenant_id AND 'member:' || m.id = p_subject))
    ), used AS (
        SELECT true AS running, r.member_id, r.admitted_at, r.held_cost AS cost,
               r.prompt_tokens::bigint + r.max_tokens AS tokens
          FROM tenants_inferencerequest r
         WHERE r.tenant_id = p_tenant_id AND r.state = 'running'
           AND (p_subject = 'tenant' OR r.key_id IN (SELECT id FROM keys))
        UNION ALL
        SELECT false, l.member_id, l.admitted_at, l.cost, l.prompt_tokens::bigint + l.completion_tokens
          FROM tenants_ledgerentry l
         WHERE p_subject = 'tenant' AND l.tenant_id = p_tenant_id
        UNION ALL
        SELECT false, l.member_id, l.admitted_at, l.cost, l.prompt_tokens::bigint + l.completion_tokens
          FROM tenants_ledgerentry l
         WHERE p_subject <> 'tenant' AND l.key_id = ANY (ARRAY(SELECT id FROM keys))
    )
    SELECT coalesce(sum(tokens) FILTER (WHERE tenants_day(admitted_at) = p_day), 0)::bigint,
           coalesce(sum(tokens) FILTER (WHERE tenants_month(admitted_at) = p_month), 0)::bigint,
           coalesce(sum(cost) FILTER (WHERE tenants_month(admitted_at) = p_month), 0)::bigint,
           coalesce(sum(tokens) FILTER (WHERE running), 0)::bigint,
           coalesce(sum(cost) FILTER (WHERE running), 0)::bigint,
           count(*) FILTER (WHERE NOT running),
           coalesce(sum(tokens) FILTER (WHERE NOT running), 0)::bigint,
           coalesce(sum(cost) FILTER (WHERE NOT running), 0)::bigint
      FROM used
     WHERE p_subject NOT LIKE 'member:%' OR p_subject = 'member:' || member_id
$$;

-- What was admitted in these days (from inclusive, to exclusive), as tenants_derived counts it: an index leads to the
-- tenant's requests of those days, and no others are read.
CREATE OR REPLACE FUNCTION tenants_used(
    p_tenant_id uuid, p_subject text, p_from date, p_to date, OUT tokens bigint, OUT cost bigint
) LANGUAGE sql STABLE AS $$
    SELECT coalesce(sum(u.tokens), 0)::bigint, coalesce(sum(u.cost), 0)::bigint
      FROM tenants_inferencerequest r
     CROSS JOIN LATERAL (
        SELECT r.prompt_tokens::bigint + r.max_tokens AS tokens, r.held_cost AS cost WHERE r.state = 'running'
        UNION ALL
        SELECT l.prompt_tokens::bigint + l.completion_tokens, l.cost
          FROM tenants_ledgerentry l WHERE l.request_id = r.id
     ) u
     WHERE r.tenant_id = p_tenant_id
       AND r.admitted_at >= p_from::timestamp AT TIME ZONE 'UTC' AND r.admitted_at < p_to::timestamp AT TIME ZONE 'UTC'
       AND (p_subject = 'tenant' OR p_subject = 'member:' || r.member_id
            OR r.key_id IN (SELECT k.id FROM tenants_apikey k
                             WHERE k.tenant_id = p_tenant_id AND 'key:' || k.line = p_subject))
$$;

-- Opens the missing accounts of a tenant and of the member and key that call for it, at their derived sums; and takes
-- those that are behind to the day and month that count, at what was used in them. An account is behind only after a
-- clock that was wrong by days: otherwise a new day begins at 0, without a look at any request.
--
-- The lock on the tenant's own account keeps settlements out meanwhile: they update that account in a statement before
-- the one that looks for the others, so each is either in the derived sums or finds the account it has to update.
CREATE OR REPLACE FUNCTION tenants_open_accounts(
    p_tenant_id uuid, p_member_id bigint, p_key_id bigint, p_clock timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    b record;               -- an account that is behind
BEGIN
    PERFORM tenants_stand_in_line(p_tenant_id);
    PERFORM 1 FROM tenants_account a WHERE a.tenant_id = p_tenant_id AND a.subject = 'tenant' FOR UPDATE;
    FOR b IN
        SELECT x.account_id, x.subject, tenants_day(x.counted_at) AS today, tenants_month(x.counted_at) AS this_month
          FROM tenants_standing(p_tenant_id, p_member_id, p_key_id, p_clock) x WHERE x.behind
    LOOP
        UPDATE tenants_account a
           SET (month, month_tokens, month_cost) = (
                   SELECT b.this_month, u.tokens, u.cost
                     FROM tenants_used(p_tenant_id, b.subject, b.this_month, (b.this_month + interval '1 month')::date) u
               )
         WHERE a.id = b.account_id AND a.month <> b.this_month;
        UPDATE tenants_account a
           SET latest_day = greatest(a.day, a.latest_day), day = b.today,
               day_tokens = (SELECT u.tokens FROM tenants_used(p_tenant_id, b.subject, b.today, b.today + 1) u)
         WHERE a.id = b.account_id AND a.day <> b.today;
    END LOOP;
    INSERT INTO tenants_account
        (tenant_id, subject, requests_us, tokens_us, latest_day, day, month, day_tokens, month_tokens, month_cost,
         held_tokens, held_cost, settled_count, settled_tokens, settled_cost)
    SELECT p_tenant_id, s.subject, 0, 0,
           (SELECT tenants_day(max(r.admitted_at)) FROM tenants_inferencerequest r WHERE r.tenant_id = p_tenant_id),
           tenants_day(s.counted_at), tenants_month(s.counted_at), d.*
      FROM tenants_standing(p_tenant_id, p_member_id, p_key_id, p_clock) s
     CROSS JOIN LATERAL tenants_derived(
        p_tenant_id, s.subject, tenants_day(s.counted_at), tenants_month(s.counted_at)
     ) d
     WHERE s.account_id IS NULL;
END
$$;

-- Sets a tenant's accounts to their derived sums, with admissions and settlements kept out. Buckets stay as they are.
CREATE OR REPLACE FUNCTION tenants_rederive(p_tenant_id uuid) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_stand_in_line(p_tenant_id);
    PERFORM 1 FROM tenants_account a WHERE a.tenant_id = p_tenant_id AND a.subject = 'tenant' FOR UPDATE;
    UPDATE tenants_account a
       SET day_tokens = d.day_tokens, month_tokens = d.month_tokens, month_cost = d.month_cost,
           held_tokens = d.held_tokens, held_cost = d.held_cost, settled_count = d.settled_count,
           settled_tokens = d.settled_tokens, settled_cost = d.settled_cost
      FROM tenants_account b CROSS JOIN LATERAL tenants_derived(b.tenant_id, b.subject, b.day, b.month) d
     WHERE b.id = a.id AND a.tenant_id = p_tenant_id;
END
$$;

-- Commits so far were asynchronous: their locks were given back before the disk had them, so that a busy tenant's line
-- moves on at once. The commit of this transaction waits for the disk, and with it for everything committed before.
CREATE OR REPLACE FUNCTION tenants_make_durable() RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_logical_emit_message(true, 'loraplex', '')
$$;
