-- Rules that hold whoever writes: the ledger is append-only. Of adapter versions: guards_versions.sql.
CREATE OR REPLACE FUNCTION tenants_refuse_ledger_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the ledger is append-only: % refused', TG_OP USING ERRCODE = 'integrity_constraint_violation';
END
$$;

CREATE OR REPLACE TRIGGER ledger_append_only BEFORE UPDATE OR DELETE ON tenants_ledgerentry
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_ledger_change();

CREATE OR REPLACE TRIGGER ledger_not_emptied BEFORE TRUNCATE ON tenants_ledgerentry
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_ledger_change();

-- Updated every second of a stream: room on the page keeps those updates heap-only.
ALTER TABLE tenants_inferencerequest SET (fillfactor = 80);
