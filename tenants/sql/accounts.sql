-- Accounts: running sums over the ledger and the holds of running requests, which can always be derived again.

-- Admissions of one tenant stand in line here, until their transaction ends. Not a row lock: a refusal writes nothing.
CREATE OR REPLACE FUNCTION tenants_stand_in_line(p_tenant_id uuid) RETURNS void LANGUAGE sql VOLATILE AS $$
    SELECT pg_advisory_xact_lock(hashtextextended(p_tenant_id::text, 7082))
$$;

-- What an account should say, from the ledger and the running requests alone.
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
    WITH used AS (
        SELECT true AS running, r.key_id, r.member_id, r.admitted_at, r.held_cost AS cost,
               r.prompt_tokens::bigint + r.max_tokens AS tokens
          FROM tenants_inferencerequest r
         WHERE r.tenant_id = p_tenant_id AND r.state = 'running'
        UNION ALL
        SELECT false, l.key_id, l.member_id, l.admitted_at, l.cost, l.prompt_tokens::bigint + l.completion_tokens
          FROM tenants_ledgerentry l
         WHERE l.tenant_id = p_tenant_id
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
     WHERE p_subject = 'tenant' OR p_subject = 'key:' || key_id OR p_subject = 'member:' || member_id
$$;

-- Opens the missing accounts of a tenant and of the member and key that call for it, at their derived sums.
--
-- The lock on the tenant's own account keeps settlements out meanwhile: they update that account in a statement before
-- the one that looks for the others, so each is either in the derived sums or finds the account it has to update.
CREATE OR REPLACE FUNCTION tenants_open_accounts(
    p_tenant_id uuid, p_member_id bigint, p_key_id bigint, p_clock timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_stand_in_line(p_tenant_id);
    PERFORM 1 FROM tenants_account a WHERE a.tenant_id = p_tenant_id AND a.subject = 'tenant' FOR UPDATE;
    INSERT INTO tenants_account
        (tenant_id, subject, requests_us, tokens_us, day, month, day_tokens, month_tokens, month_cost, held_tokens,
         held_cost, settled_count, settled_tokens, settled_cost)
    SELECT p_tenant_id, s.subject, 0, 0, tenants_day(p_clock), tenants_month(p_clock), d.*
      FROM tenants_standing(p_tenant_id, p_member_id, p_key_id, p_clock) s
     CROSS JOIN LATERAL tenants_derived(p_tenant_id, s.subject, tenants_day(p_clock), tenants_month(p_clock)) d
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
