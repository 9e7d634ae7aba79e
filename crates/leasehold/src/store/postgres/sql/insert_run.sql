-- One new run: nothing is written and no row comes back where its id or its request key is taken.
WITH made AS (
    INSERT INTO runs (
        id, agent, owner, initiator, team, mode, state, reason, epoch, sequence, lease_id, holder, next_segment,
        cancel_requested, recovery, recovery_explicit, requeues, priority, due_at_ms, fence_call, fence_tool,
        fence_effect, fence_key, fence_epoch, fence_lease_id, fence_attempt, fence_repeat, fence_verifiable,
        fence_stamped_at_ms, fence_in_flight_until_ms, turn, wait_deadline_ms, has_request, second_approver, rounds,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_nano_usd, duplicates, contradictions, attribution, chain_salt, chain_head, created_at_ms, started_at_ms,
        finished_at_ms, since_ms, lease_clock, lease_expires_ns, request_scope, request_key, request_hash
    ) VALUES (
        :id, :agent, :owner, :initiator, :team, :mode, :state, :reason, :epoch, :sequence, :lease_id, :holder, :next_segment,
        :cancel_requested, :recovery, :recovery_explicit, :requeues, :priority, :due_at_ms, :fence_call, :fence_tool,
        :fence_effect, :fence_key, :fence_epoch, :fence_lease_id, :fence_attempt, :fence_repeat, :fence_verifiable,
        :fence_stamped_at_ms, :fence_in_flight_until_ms, :turn, :wait_deadline_ms, :has_request, :second_approver,
        :rounds, :input_tokens, :output_tokens, :cached_tokens, :reasoning_tokens, :cost_nano_usd, :duplicates, :contradictions, :attribution, :chain_salt, :chain_head, :created_at_ms,
        :started_at_ms, :finished_at_ms, :since_ms, CASE WHEN :ttl_ns::bigint IS NULL THEN NULL ELSE :clock END,
        coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) + :ttl_ns, :request_scope,
        :request_key, :request_hash
    )
    ON CONFLICT DO NOTHING
    RETURNING id, lease_clock, lease_expires_ns
), appended AS (
    INSERT INTO journal (run_id, sequence, at_ms, epoch, holder, write_id, kind, mac, payload)
    SELECT e.run_id, e.sequence, e.at_ms, e.epoch, e.holder, e.write_id, e.kind, e.mac, e.payload
    FROM made JOIN unnest(
        :entry_run::uuid[], :entry_sequence::bigint[], :entry_at_ms::bigint[], :entry_epoch::bigint[], :entry_holder::text[],
        :entry_write_id::uuid[], :entry_kind::text[], :entry_mac::bytea[], :entry_payload::bytea[]
    ) AS e (run_id, sequence, at_ms, epoch, holder, write_id, kind, mac, payload) ON e.run_id = made.id
)
SELECT id, lease_clock, lease_expires_ns FROM made
