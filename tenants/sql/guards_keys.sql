-- The keys of one line (a key, its successor, the successor's …) have the same limits and restrictions, as they have the
-- same counters, whoever writes and whichever of them is written.
CREATE OR REPLACE FUNCTION tenants_keep_line_alike() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenants_apikey k
       SET requests_per_minute = NEW.requests_per_minute, tokens_per_minute = NEW.tokens_per_minute,
           max_concurrent = NEW.max_concurrent, tokens_per_day = NEW.tokens_per_day,
           tokens_per_month = NEW.tokens_per_month, budget_soft = NEW.budget_soft, budget_hard = NEW.budget_hard,
           max_input_tokens = NEW.max_input_tokens, max_output_tokens = NEW.max_output_tokens,
           only_models = NEW.only_models, only_adapters = NEW.only_adapters,
           allowed_addresses = NEW.allowed_addresses
     WHERE k.line = NEW.line AND k.id <> NEW.id;
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER key_line_alike
    AFTER UPDATE OF requests_per_minute, tokens_per_minute, max_concurrent, tokens_per_day, tokens_per_month,
                    budget_soft, budget_hard, max_input_tokens, max_output_tokens, only_models, only_adapters,
                    allowed_addresses
    ON tenants_apikey
    FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION tenants_keep_line_alike();

-- What gateways remember of a tenant's keys is out of date: the payload is the tenant. A gateway that does not hear it
-- forgets within seconds by itself.
CREATE OR REPLACE FUNCTION tenants_tell_gateways() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('loraplex_access', to_jsonb(coalesce(NEW, OLD)) ->> TG_ARGV[0]);
    RETURN NULL;
END
$$;

CREATE OR REPLACE TRIGGER key_tells_gateways
    AFTER UPDATE OF revoked_at, expires_at, member_id, only_models, only_adapters, allowed_addresses ON tenants_apikey
    FOR EACH ROW EXECUTE FUNCTION tenants_tell_gateways('tenant_id');

CREATE OR REPLACE TRIGGER tenant_tells_gateways AFTER UPDATE OF state, slug ON tenants_tenant
    FOR EACH ROW EXECUTE FUNCTION tenants_tell_gateways('id');

CREATE OR REPLACE TRIGGER member_tells_gateways
    AFTER UPDATE OF only_models, only_adapters OR DELETE ON tenants_member
    FOR EACH ROW EXECUTE FUNCTION tenants_tell_gateways('tenant_id');

CREATE OR REPLACE TRIGGER allowance_tells_gateways AFTER INSERT OR DELETE ON tenants_modelallowance
    FOR EACH ROW EXECUTE FUNCTION tenants_tell_gateways('tenant_id');

CREATE OR REPLACE TRIGGER share_tells_gateways AFTER INSERT OR DELETE ON tenants_adapterallowance
    FOR EACH ROW EXECUTE FUNCTION tenants_tell_gateways('tenant_id');
