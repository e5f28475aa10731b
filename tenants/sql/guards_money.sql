-- Rules that hold whoever writes: a price never changes, nor does what a request holds.
CREATE OR REPLACE FUNCTION tenants_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% is written once: % refused', TG_ARGV[0], TG_OP USING ERRCODE = 'integrity_constraint_violation';
END
$$;

CREATE OR REPLACE TRIGGER price_written_once BEFORE UPDATE OR DELETE ON tenants_price
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('a price');

CREATE OR REPLACE TRIGGER hold_written_once
    BEFORE UPDATE OF tenant_id, key_id, member_id, base_model_id, adapter_version_id, price_id, prompt_tokens,
                     max_tokens, held_cost, admitted_at
    ON tenants_inferencerequest
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('a hold');

-- Updated at every admission and settlement: room on the page keeps those updates heap-only.
ALTER TABLE tenants_account SET (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02);
