-- What requests and the ledger name stays, whoever writes. Foreign keys would see to that as well; but they look up and
-- lock four rows for each admission (five with an adapter), of which the base model's and the price's are everybody's:
-- measured in docs/decisions.md. These look where something is removed, which hardly ever happens. Prices and ready versions are
-- never removed: guards_money.sql, guards_versions.sql.
CREATE OR REPLACE FUNCTION tenants_refuse_removal(p_tenant_id uuid, p_key_id bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- No admission of the tenant is under way now; one that comes before this transaction ends waits, and then finds the
    -- key gone.
    PERFORM tenants_stand_in_line(p_tenant_id);
    IF p_key_id IS NULL AND EXISTS (SELECT FROM tenants_inferencerequest r WHERE r.tenant_id = p_tenant_id)
       OR EXISTS (SELECT FROM tenants_inferencerequest r WHERE r.key_id = p_key_id) THEN
        RAISE EXCEPTION 'tenant % has made requests that name it', p_tenant_id USING ERRCODE = 'foreign_key_violation';
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION tenants_keep_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_refuse_removal(OLD.id, NULL);
    RETURN OLD;
END
$$;

CREATE OR REPLACE FUNCTION tenants_keep_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_refuse_removal(OLD.tenant_id, OLD.id);
    RETURN OLD;
END
$$;

CREATE OR REPLACE TRIGGER used_tenant_stays BEFORE DELETE ON tenants_tenant
    FOR EACH ROW EXECUTE FUNCTION tenants_keep_tenant();

CREATE OR REPLACE TRIGGER used_key_stays BEFORE DELETE ON tenants_apikey
    FOR EACH ROW EXECUTE FUNCTION tenants_keep_key();

CREATE OR REPLACE TRIGGER model_stays BEFORE DELETE ON tenants_basemodel
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('a registered model');

CREATE OR REPLACE TRIGGER request_stays BEFORE DELETE ON tenants_inferencerequest
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('a request');

-- TRUNCATE fires no trigger of a row's.
CREATE OR REPLACE TRIGGER tenant_not_emptied BEFORE TRUNCATE ON tenants_tenant
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('what requests name');
CREATE OR REPLACE TRIGGER key_not_emptied BEFORE TRUNCATE ON tenants_apikey
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('what requests name');
CREATE OR REPLACE TRIGGER model_not_emptied BEFORE TRUNCATE ON tenants_basemodel
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('what requests name');
CREATE OR REPLACE TRIGGER price_not_emptied BEFORE TRUNCATE ON tenants_price
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('what requests name');
CREATE OR REPLACE TRIGGER version_not_emptied BEFORE TRUNCATE ON tenants_adapterversion
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('what requests name');
CREATE OR REPLACE TRIGGER request_not_emptied BEFORE TRUNCATE ON tenants_inferencerequest
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('what requests name');

-- Nor do they get other names.
CREATE OR REPLACE TRIGGER tenant_keeps_its_id BEFORE UPDATE OF id ON tenants_tenant
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('an id');
CREATE OR REPLACE TRIGGER key_keeps_its_id BEFORE UPDATE OF id ON tenants_apikey
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('an id');
CREATE OR REPLACE TRIGGER model_keeps_its_id BEFORE UPDATE OF id ON tenants_basemodel
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('an id');
CREATE OR REPLACE TRIGGER request_keeps_its_id BEFORE UPDATE OF id ON tenants_inferencerequest
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('an id');
