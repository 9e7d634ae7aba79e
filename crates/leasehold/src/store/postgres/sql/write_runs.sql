-- Many guarded writes, at most one to a run: a row for each whose row could be locked, and whether its guard held. A row that
-- somebody else has locked is passed over, so that it holds up no other; the guard is judged on the locked row.
WITH wanted AS (
    SELECT * FROM unnest(
        :id::uuid[], :agent::text[], :owner::text[], :initiator::text[], :team::text[], :mode::text[], :state::text[], :reason::text[],
        :epoch::bigint[], :sequence::bigint[], :lease_id::uuid[], :holder::text[], :next_segment::text[],
        :cancel_requested::boolean[], :recovery::text[], :recovery_explicit::boolean[], :requeues::bigint[],
        :priority::integer[], :due_at_ms::bigint[], :fence_call::text[], :fence_tool::text[], :fence_effect::text[],
        :fence_key::text[], :fence_epoch::bigint[], :fence_lease_id::uuid[], :fence_attempt::bigint[],
        :fence_repeat::boolean[], :fence_verifiable::boolean[], :fence_stamped_at_ms::bigint[],
        :fence_in_flight_until_ms::bigint[], :turn::text[], :wait_deadline_ms::bigint[], :has_request::boolean[],
        :second_approver::boolean[], :rounds::bigint[], :input_tokens::bigint[], :output_tokens::bigint[],
        :cached_tokens::bigint[], :reasoning_tokens::bigint[], :cost_nano_usd::bigint[], :duplicates::bigint[], :contradictions::bigint[], :attribution::text[], :chain_salt::bytea[], :chain_head::bytea[], :created_at_ms::bigint[],
        :started_at_ms::bigint[], :finished_at_ms::bigint[], :since_ms::bigint[], :ttl_ns::bigint[],
        :keep_lease::boolean[], :guard_epoch::bigint[], :guard_lease_id::uuid[], :guard_sequence::bigint[],
        :seen_clock::text[], :seen_ns::bigint[], :watched_ns::bigint[]
    ) AS w (
        id, agent, owner, initiator, team, mode, state, reason, epoch, sequence, lease_id, holder, next_segment,
        cancel_requested, recovery, recovery_explicit, requeues, priority, due_at_ms, fence_call, fence_tool,
        fence_effect, fence_key, fence_epoch, fence_lease_id, fence_attempt, fence_repeat, fence_verifiable,
        fence_stamped_at_ms, fence_in_flight_until_ms, turn, wait_deadline_ms, has_request, second_approver, rounds,
        input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_nano_usd, duplicates, contradictions, attribution, chain_salt, chain_head, created_at_ms, started_at_ms,
        finished_at_ms, since_ms, ttl_ns, keep_lease, guard_epoch, guard_lease_id, guard_sequence, seen_clock, seen_ns,
        watched_ns
    )
), locked AS MATERIALIZED (
    SELECT id FROM runs WHERE id = ANY (:id) FOR NO KEY UPDATE SKIP LOCKED
), written AS (
    UPDATE runs AS r SET
        agent = w.agent, owner = w.owner, initiator = w.initiator, team = w.team, mode = w.mode, state = w.state, reason = w.reason,
        epoch = w.epoch, sequence = w.sequence, next_segment = w.next_segment, cancel_requested = w.cancel_requested,
        recovery = w.recovery, recovery_explicit = w.recovery_explicit, requeues = w.requeues, priority = w.priority,
        due_at_ms = w.due_at_ms, fence_call = w.fence_call, fence_tool = w.fence_tool, fence_effect = w.fence_effect,
        fence_key = w.fence_key, fence_epoch = w.fence_epoch, fence_lease_id = w.fence_lease_id,
        fence_attempt = w.fence_attempt, fence_repeat = w.fence_repeat, fence_verifiable = w.fence_verifiable,
        fence_stamped_at_ms = w.fence_stamped_at_ms, fence_in_flight_until_ms = w.fence_in_flight_until_ms,
        turn = w.turn, wait_deadline_ms = w.wait_deadline_ms, has_request = w.has_request,
        second_approver = w.second_approver, rounds = w.rounds, input_tokens = w.input_tokens,
        output_tokens = w.output_tokens, cached_tokens = w.cached_tokens, reasoning_tokens = w.reasoning_tokens, cost_nano_usd = w.cost_nano_usd,
        duplicates = w.duplicates, contradictions = w.contradictions, attribution = w.attribution, chain_salt = w.chain_salt, chain_head = w.chain_head, created_at_ms = w.created_at_ms, started_at_ms = w.started_at_ms,
        finished_at_ms = w.finished_at_ms, since_ms = w.since_ms,
        lease_id = CASE WHEN w.keep_lease THEN r.lease_id ELSE w.lease_id END,
        holder = CASE WHEN w.keep_lease THEN r.holder ELSE w.holder END,
        lease_clock = CASE WHEN w.keep_lease THEN r.lease_clock WHEN w.lease_id IS NULL THEN NULL ELSE :clock END,
        lease_expires_ns = CASE WHEN w.keep_lease THEN r.lease_expires_ns WHEN w.lease_id IS NULL THEN NULL
            ELSE coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint) + w.ttl_ns END
    FROM locked JOIN wanted AS w ON w.id = locked.id
    WHERE r.id = locked.id
      AND r.epoch = w.guard_epoch
      AND r.lease_id IS NOT DISTINCT FROM w.guard_lease_id
      AND r.sequence = w.guard_sequence
      AND (w.seen_ns IS NULL OR (
          r.lease_clock = w.seen_clock
          AND r.lease_expires_ns = w.seen_ns
          AND CASE WHEN r.lease_clock = :clock
              THEN r.lease_expires_ns <= coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
                OR r.lease_expires_ns > w.watched_ns
                    + coalesce(:now_ns, (extract(epoch FROM clock_timestamp()) * 1000000000)::bigint)
              ELSE w.watched_ns IS NOT NULL END
      ))
    RETURNING r.id, r.lease_clock, r.lease_expires_ns
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
SELECT locked.id, written.id IS NOT NULL AS is_written, lease_clock, lease_expires_ns
FROM locked LEFT JOIN written ON written.id = locked.id
