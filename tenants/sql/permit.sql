-- May this key use this model now, whatever its limits? NULL in `code`: it may; then the rest is filled in.
-- No price: free. A plan's own price goes before the general one.
CREATE OR REPLACE FUNCTION tenants_permit(
    p_tenant_id uuid,
    p_key_id bigint,
    p_base_model_id bigint,
    p_adapter_version_id bigint,
    p_clock timestamptz,
    OUT code text,
    OUT member_id bigint,
    OUT namespace text,
    OUT weight integer,
    OUT fingerprint text,
    OUT context_length integer,
    OUT adapter_digest text,
    OUT price tenants_price
) LANGUAGE plpgsql STABLE AS $$
DECLARE
    who record;
    used_adapter bigint;
BEGIN
    SELECT t.state, t.plan_id, t.namespace, t.weight, k.member_id,
           k.only_models, k.only_adapters, m.only_models AS member_models, m.only_adapters AS member_adapters
      INTO who
      FROM tenants_apikey k
      JOIN tenants_tenant t ON t.id = k.tenant_id
      LEFT JOIN tenants_member m ON m.id = k.member_id
     WHERE k.id = p_key_id AND k.tenant_id = p_tenant_id AND k.revoked_at IS NULL
       AND (k.expires_at IS NULL OR k.expires_at > p_clock);
    IF NOT FOUND THEN
        code := 'key_revoked';
        RETURN;
    END IF;
    IF who.state <> 'active' THEN
        code := 'tenant_suspended';
        RETURN;
    END IF;

    SELECT b.fingerprint, b.context_length INTO fingerprint, context_length
      FROM tenants_basemodel b JOIN tenants_modelallowance a ON a.base_model_id = b.id AND a.tenant_id = p_tenant_id
     WHERE b.id = p_base_model_id AND b.state = 'active';
    IF NOT FOUND THEN
        code := 'model_not_found';
        RETURN;
    END IF;

    IF p_adapter_version_id IS NULL THEN
        IF NOT coalesce(p_base_model_id = ANY (who.only_models), true)
           OR NOT coalesce(p_base_model_id = ANY (who.member_models), true) THEN
            code := 'model_not_found';
            RETURN;
        END IF;
    ELSE
        SELECT v.digest, d.id INTO adapter_digest, used_adapter
          FROM tenants_adapterversion v JOIN tenants_adapter d ON d.id = v.adapter_id
         WHERE v.id = p_adapter_version_id AND v.state = 'ready' AND d.base_model_id = p_base_model_id
           AND v.deleted_at IS NULL AND d.deleted_at IS NULL
           AND (d.tenant_id = p_tenant_id
                OR EXISTS (SELECT 1 FROM tenants_adapterallowance a
                           WHERE a.adapter_id = d.id AND a.tenant_id = p_tenant_id));
        IF NOT FOUND
           OR NOT coalesce(used_adapter = ANY (who.only_adapters), true)
           OR NOT coalesce(used_adapter = ANY (who.member_adapters), true) THEN
            code := 'model_not_found';
            RETURN;
        END IF;
    END IF;

    member_id := who.member_id;
    namespace := who.namespace;
    weight := who.weight;
    SELECT p.* INTO price FROM tenants_price p
     WHERE p.base_model_id = p_base_model_id AND p.valid_from <= p_clock
       AND (p.plan_id IS NULL OR p.plan_id = who.plan_id)
     ORDER BY p.plan_id NULLS LAST, p.valid_from DESC, p.id DESC
     LIMIT 1;
END
$$;
