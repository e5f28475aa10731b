-- The audit log is append-only, whoever writes.
CREATE OR REPLACE TRIGGER audit_append_only BEFORE UPDATE OR DELETE ON tenants_auditentry
    FOR EACH ROW EXECUTE FUNCTION tenants_refuse_change('the audit log');

CREATE OR REPLACE TRIGGER audit_not_emptied BEFORE TRUNCATE ON tenants_auditentry
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_refuse_change('the audit log');
