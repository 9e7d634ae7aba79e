-- One guarded write: nothing is written where the guard does not hold, and no row comes back where somebody else has it locked.
WITH locked AS MATERIALIZED (
    SELECT id AS locked_id FROM runs WHERE id = :id FOR NO KEY UPDATE SKIP LOCKED
), written AS (
    UPDATE runs SET
        agent = :agent, owner = :owner, initiator = :initiator, team = :team, mode = :mode, state = :state, reason = :reason,
        epoch = :epoch, sequence = :sequence, next_segment = :next_segment, cancel_requested = :cancel_requested,
        recovery = :recovery, recovery_explicit = :recovery_explicit, requeues = :requeues, priority = :priority,
        due_at_ms = :due_at_ms, fence_call = :fence_call, fence_tool = :fence_tool, fence_effect = :fence_effect,
        fence_key = :fence_key, fence_epoch = :fence_epoch, fence_lease_id = :fence_lease_id,
        fence_attempt = :fence_attempt, fence_repeat = :fence_repeat, fence_verifiable = :fence_verifiable,
        fence_stamped_at_ms = :fence_stamped_at_ms, fence_in_flight_until_ms = :fence_in_flight_until_ms, turn = :turn,
        wait_deadline_ms = :wait_deadline_ms, has_request = :has_request, second_approver = :second_approver,
        rounds = :rounds, input_tokens = :input_tokens, output_tokens = :output_tokens, cached_tokens = :cached_tokens, reasoning_tokens = :reasoning_tokens,
        cost_nano_usd = :cost_nano_usd, duplicates = :duplicates, contradictions = :contradictions, attribution = :attribution, chain_salt = :chain_salt, chain_head = :chain_head, created_at_ms = :created_at_ms,
        started_at_ms = :started_at_ms, finished_at_ms = :finished_at_ms, since_ms = :since_ms,
        lease_id = CASE WHEN :keep_lease THEN lease_id ELSE :lease_id END,
        holder = CASE WHEN :keep_lease THEN holder ELSE :holder END,
        lease_clock = CASE WHEN :keep_lease THEN lease_clock WHEN :lease_id IS NULL THEN NULL ELSE :clock END,
        lease_expires_ns = CASE WHEN :keep_lease THEN lease_expires_ns WHEN :lease_id IS NULL THEN NULL
            ELSE coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) + :ttl_ns END
    FROM locked
    WHERE id = locked_id
      AND epoch = :guard_epoch
      AND lease_id IS NOT DISTINCT FROM :guard_lease_id
      AND sequence = :guard_sequence
      AND (:seen_ns::bigint IS NULL OR (
          lease_clock = :seen_clock
          AND lease_expires_ns = :seen_ns
          AND CASE WHEN lease_clock = :clock
              THEN lease_expires_ns <= coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
                OR lease_expires_ns > :watched_ns
                    + coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
              ELSE :watched_ns IS NOT NULL END
      ))
    RETURNING id, lease_clock, lease_expires_ns
), appended AS (
    INSERT INTO journal (run_id, sequence, at_ms, epoch, holder, write_id, kind, mac, payload)
    SELECT e.run_id, e.sequence, e.at_ms, e.epoch, e.holder, e.write_id, e.kind, e.mac, e.payload
    FROM written JOIN unnest(
        :entry_run::uuid[], :entry_sequence::bigint[], :entry_at_ms::bigint[], :entry_epoch::bigint[], :entry_holder::text[],
        :entry_write_id::uuid[], :entry_kind::text[], :entry_mac::bytea[], :entry_payload::bytea[]
    ) AS e (run_id, sequence, at_ms, epoch, holder, write_id, kind, mac, payload) ON e.run_id = written.id
), called AS (
    INSERT INTO callers (tool, run_id, at_ms)
    SELECT c.tool, c.run_id, c.at_ms
    FROM written JOIN unnest(:called_tool::text[], :called_run::uuid[], :called_at_ms::bigint[]) AS c (tool, run_id, at_ms)
        ON c.run_id = written.id
    ON CONFLICT (tool, run_id) DO UPDATE SET at_ms = excluded.at_ms
)
SELECT written.id IS NOT NULL AS is_written, lease_clock, lease_expires_ns
FROM locked LEFT JOIN written ON written.id = locked_id
