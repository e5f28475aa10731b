-- What a name stood for is history: a release is never changed.
CREATE OR REPLACE TRIGGER release_written_once BEFORE UPDATE ON tenants_release
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('a release');

-- The owner's requests follow at once; those of tenants that it is shared with when their keys are read again.
CREATE OR REPLACE TRIGGER release_tells_gateways
    AFTER UPDATE OF current_id, canary_id, canary_percent, deleted_at ON tenants_adapter
    FOR EACH ROW EXECUTE FUNCTION tenants_tell_gateways('tenant_id');
