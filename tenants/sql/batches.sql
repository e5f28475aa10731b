-- A line of a batch is finished: its answer is kept and its request settled in one transaction, or neither. So a line
-- is charged once and answered once, whoever dies when.
--
-- p_request_id NULL: nothing was admitted, or it is void already. `verdict`: 'recorded'; 'known': somebody was quicker,
-- and this request is void; 'lost': the request runs no more (its lease ran out) or the batch takes no more lines, and
-- nothing happened.
--
-- Lock order: the batch's row, then as in admit.sql.
CREATE OR REPLACE PROCEDURE tenants_finish_line(
    p_batch_id text,
    p_line integer,
    p_answered boolean,
    p_body bytea,
    p_request_id uuid,
    p_prompt integer,
    p_cached integer,
    p_completion integer,
    p_finish_reason text,
    p_first_token_ms integer,
    p_queue_ms integer,
    p_prefill_ms integer,
    OUT verdict text
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('lock_timeout', '5s', true), set_config('synchronous_commit', 'off', true);
    PERFORM 1 FROM tenants_batch b
      WHERE b.id = p_batch_id AND b.status = 'in_progress' FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        verdict := 'lost';
    ELSIF EXISTS (SELECT 1 FROM tenants_batchresult r WHERE r.batch_id = p_batch_id AND r.line = p_line) THEN
        verdict := 'known';
        IF p_request_id IS NOT NULL THEN
            PERFORM tenants_close(p_request_id, 0, 0, 0, 'cancelled', '');
        END IF;
    ELSIF p_request_id IS NOT NULL
          AND tenants_close(p_request_id, p_prompt, p_cached, p_completion, 'completed', p_finish_reason,
                            p_first_token_ms, p_queue_ms, p_prefill_ms) IS NULL THEN
        verdict := 'lost';
    ELSE
        verdict := 'recorded';
        INSERT INTO tenants_batchresult (batch_id, line, answered, request_id, body)
        VALUES (p_batch_id, p_line, p_answered, p_request_id, p_body);
        UPDATE tenants_batch b
           SET completed = b.completed + CASE WHEN p_answered THEN 1 ELSE 0 END,
               failed = b.failed + CASE WHEN p_answered THEN 0 ELSE 1 END,
               prompt_tokens = b.prompt_tokens + p_prompt,
               cached_tokens = b.cached_tokens + p_cached,
               completion_tokens = b.completion_tokens + p_completion
         WHERE b.id = p_batch_id;
    END IF;
    COMMIT;
    PERFORM tenants_make_durable();
END
$$;

-- As gateways from before 0016 call it: while an upgrade lasts, some of them still run.
CREATE OR REPLACE PROCEDURE tenants_finish_line(
    p_batch_id text,
    p_line integer,
    p_answered boolean,
    p_body bytea,
    p_request_id uuid,
    p_prompt integer,
    p_cached integer,
    p_completion integer,
    p_finish_reason text,
    OUT verdict text
) LANGUAGE plpgsql AS $$
BEGIN
    CALL tenants_finish_line(p_batch_id, p_line, p_answered, p_body, p_request_id, p_prompt, p_cached, p_completion,
                             p_finish_reason, NULL, NULL, NULL, verdict);
END
$$;
