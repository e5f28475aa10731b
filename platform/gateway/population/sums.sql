-- Accounts, as admissions would have left them: the tenants', and those of keys with limits of their own.
INSERT INTO tenants_account
    (tenant_id, subject, requests_us, tokens_us, day, month, day_tokens, month_tokens, month_cost, held_tokens, held_cost,
     settled_count, settled_tokens, settled_cost)
SELECT l.tenant_id, s.subject, 0, 0, tenants_day(now()), tenants_month(now()),
       coalesce(sum(used.tokens) FILTER (WHERE tenants_day(l.admitted_at) = tenants_day(now())), 0),
       coalesce(sum(used.tokens) FILTER (WHERE tenants_month(l.admitted_at) = tenants_month(now())), 0),
       coalesce(sum(l.cost) FILTER (WHERE tenants_month(l.admitted_at) = tenants_month(now())), 0),
       0, 0, count(*), sum(used.tokens), sum(l.cost)
  FROM tenants_ledgerentry l
  JOIN tenants_apikey k ON k.id = l.key_id
 CROSS JOIN LATERAL (SELECT l.prompt_tokens::bigint + l.completion_tokens AS tokens) AS used
 CROSS JOIN LATERAL (
    VALUES ('tenant'), (CASE WHEN k.budget_hard IS NOT NULL THEN 'key:' || k.line END)
 ) AS s (subject)
 WHERE s.subject IS NOT NULL
 GROUP BY 1, 2;
