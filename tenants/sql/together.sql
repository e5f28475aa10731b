-- Admissions, and settlements, of several requests as one statement and one transaction: what a statement costs besides
-- its requests (a round trip, a commit, expressions made ready once a transaction) is paid once for all of them. Each
-- answers in the order of what it was asked; NULL: not now, ask again.
--
-- None of these waits for the disk: an answer holds once tenants_make_durable has come back.
--
-- Without p_patience nobody waits for somebody else's lock, nor for a look through the ledger: that is for requests of
-- several tenants, of which one must not feel another. With it, for those of one: at most 5 s for each lock.
--
-- Locks: a transaction without patience may hold several tenants' lines and accounts. It waits for an account only where
-- it has the tenant's line, so at most for a settlement; a settlement of several tenants waits for nothing, and one of
-- one tenant for its rows in the order of their ids before it has its accounts. So nobody waits in a circle (but for
-- a refusal that corrects a key's bucket after the clock went back: then 100 ms end it). Whoever finds such an account
-- kept for longer than 100 ms fails with all that it did; each tenant's can then be asked apart.

-- What one admission is asked is what tenants_decide is; an answer is what that says.
CREATE OR REPLACE FUNCTION tenants_admit_together(p_asked json, p_patience boolean, OUT answers json)
LANGUAGE plpgsql AS $$
DECLARE
    asked record;
    verdict record;
    said json[] := '{}';
BEGIN
    PERFORM set_config('lock_timeout', CASE WHEN p_patience THEN '5s' ELSE '100ms' END, true),
            set_config('synchronous_commit', 'off', true);
    FOR asked IN
        SELECT * FROM json_to_recordset(p_asked) AS x (
            request uuid, tenant uuid, key bigint, base bigint, adapter bigint, prompt integer, max integer,
            most integer, choices integer, lease interval, now timestamptz)
    LOOP
        verdict := tenants_decide(asked.request, asked.tenant, asked.key, asked.base, asked.adapter, asked.prompt,
                                  asked.max, asked.choices, asked.lease, asked.now, p_patience, asked.most);
        said := array_append(said, CASE WHEN verdict.code IS DISTINCT FROM 'busy' THEN row_to_json(verdict) END);
    END LOOP;
    answers := array_to_json(said);
END
$$;

-- What one settlement is asked is what tenants_close is; an answer is {"held": what that says}.
CREATE OR REPLACE FUNCTION tenants_settle_together(p_asked json, p_patience boolean, OUT answers json)
LANGUAGE plpgsql AS $$
DECLARE
    asked record;
    one uuid;
    mine uuid[] := '{}';
    said json[] := '{}';
BEGIN
    PERFORM set_config('lock_timeout', '5s', true), set_config('synchronous_commit', 'off', true);
    -- One by one, so that indexes are used whatever the planner knows of the tables.
    FOR one IN SELECT (x ->> 'request')::uuid FROM json_array_elements(p_asked) AS x LOOP
        IF p_patience THEN
            PERFORM 1 FROM tenants_inferencerequest r WHERE r.id = one FOR NO KEY UPDATE;
            mine := array_append(mine, one);
        ELSE
            -- Whoever has a tenant's own account has its members' and keys' as well: see admit.sql.
            PERFORM 1 FROM tenants_inferencerequest r
               JOIN tenants_account a ON a.tenant_id = r.tenant_id AND a.subject = 'tenant'
              WHERE r.id = one FOR NO KEY UPDATE SKIP LOCKED;
            IF FOUND THEN
                mine := array_append(mine, one);
            END IF;
        END IF;
    END LOOP;
    FOR asked IN
        SELECT * FROM json_to_recordset(p_asked) AS x (
            request uuid, prompt integer, cached integer, completion integer, outcome text, finish text,
            first_token integer, queue integer, prefill integer)
    LOOP
        said := array_append(said, CASE WHEN asked.request = ANY (mine) THEN json_build_object(
            'held', tenants_close(asked.request, asked.prompt, asked.cached, asked.completion, asked.outcome,
                                  asked.finish, asked.first_token, asked.queue, asked.prefill)) END);
    END LOOP;
    answers := array_to_json(said);
END
$$;
