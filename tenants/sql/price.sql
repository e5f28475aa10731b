-- What tokens cost, in micro-units: the one place where money is rounded, upwards and once per request.
--
-- 64 bits are enough: a request has fewer than 2^31 tokens, and a price is less than 2^31 per million. A budget is cut to
-- what they hold: one that was lowered far below what is spent is as empty as one of which nothing is left.
CREATE OR REPLACE FUNCTION tenants_cost(price tenants_price, prompt bigint, cached bigint, completion bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(
        ((prompt - cached) * price.input + cached * price.cached_input + completion * price.output + 999999) / 1000000,
        0
    )
$$;

-- How many output tokens `budget` pays for after an uncached prompt; NULL: as many as you like; less than 1: none.
CREATE OR REPLACE FUNCTION tenants_affordable(price tenants_price, budget bigint, prompt bigint)
RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE
        WHEN price.output > 0 THEN (greatest(least(budget, 4611686018427), -1) * 1000000 - prompt * price.input) / price.output
        WHEN greatest(least(budget, 4611686018427), -1) * 1000000 < prompt * price.input THEN 0
    END
$$;
