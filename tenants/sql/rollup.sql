-- Makes the roll-up of these hours (from inclusive, to exclusive, whole hours) again from the ledger.
CREATE OR REPLACE FUNCTION tenants_roll_up(p_from timestamptz, p_to timestamptz) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    made bigint;
BEGIN
    PERFORM pg_advisory_xact_lock(7083);
    DELETE FROM tenants_usagehour u WHERE u.hour >= p_from AND u.hour < p_to;
    INSERT INTO tenants_usagehour
        (hour, tenant_id, key_id, member_id, base_model_id, adapter_id, requests, not_completed, prompt_tokens,
         cached_tokens, completion_tokens, cost)
    SELECT date_trunc('hour', l.admitted_at, 'UTC'), l.tenant_id, l.key_id, l.member_id, l.base_model_id, v.adapter_id,
           count(*), count(*) FILTER (WHERE l.outcome <> 'completed'), sum(l.prompt_tokens), sum(l.cached_tokens),
           sum(l.completion_tokens), sum(l.cost)
      FROM tenants_ledgerentry l LEFT JOIN tenants_adapterversion v ON v.id = l.adapter_version_id
     WHERE l.admitted_at >= p_from AND l.admitted_at < p_to
     GROUP BY 1, 2, 3, 4, 5, 6;
    GET DIAGNOSTICS made = ROW_COUNT;
    RETURN made;
END
$$;
