-- A ready adapter version never changes, whoever writes. It may be deleted, which marks it and changes nothing else.
CREATE OR REPLACE FUNCTION tenants_refuse_version_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.deleted_at IS NULL AND NEW.deleted_at IS NOT NULL
       AND to_jsonb(NEW) - 'deleted_at' = to_jsonb(OLD) - 'deleted_at' THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'adapter version % is ready and cannot change', OLD.id
        USING ERRCODE = 'integrity_constraint_violation';
END
$$;

CREATE OR REPLACE TRIGGER ready_version_immutable BEFORE UPDATE OR DELETE ON tenants_adapterversion
    FOR EACH ROW WHEN (OLD.state = 'ready') EXECUTE FUNCTION tenants_refuse_version_change();
