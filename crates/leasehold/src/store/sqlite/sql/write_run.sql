UPDATE runs SET
    agent = :agent, owner = :owner, initiator = :initiator, team = :team, mode = :mode, state = :state, reason = :reason,
    epoch = :epoch, sequence = :sequence, lease_id = iif(:keep_lease, lease_id, :lease_id),
    holder = iif(:keep_lease, holder, :holder), lease_clock = iif(:keep_lease, lease_clock, :lease_clock),
    lease_expires_ns = iif(:keep_lease, lease_expires_ns, :lease_expires_ns), next_segment = :next_segment,
    cancel_requested = :cancel_requested, recovery = :recovery, recovery_explicit = :recovery_explicit,
    requeues = :requeues, priority = :priority, due_at_ms = :due_at_ms, fence_call = :fence_call,
    fence_tool = :fence_tool, fence_effect = :fence_effect, fence_key = :fence_key, fence_epoch = :fence_epoch,
    fence_lease_id = :fence_lease_id, fence_attempt = :fence_attempt, fence_repeat = :fence_repeat,
    fence_verifiable = :fence_verifiable, fence_stamped_at_ms = :fence_stamped_at_ms,
    fence_in_flight_until_ms = :fence_in_flight_until_ms, turn = :turn, wait_deadline_ms = :wait_deadline_ms,
    has_request = :has_request, second_approver = :second_approver, rounds = :rounds, input_tokens = :input_tokens,
    output_tokens = :output_tokens, cached_tokens = :cached_tokens, reasoning_tokens = :reasoning_tokens, cost_nano_usd = :cost_nano_usd,
    duplicates = :duplicates, contradictions = :contradictions, attribution = :attribution, chain_salt = :chain_salt, chain_head = :chain_head, created_at_ms = :created_at_ms, started_at_ms = :started_at_ms,
    finished_at_ms = :finished_at_ms, since_ms = :since_ms
WHERE id = :id
  AND epoch = :guard_epoch
  AND lease_id IS :guard_lease_id
  AND sequence = :guard_sequence
  AND (:seen_ns IS NULL OR (
      lease_clock = :seen_clock
      AND lease_expires_ns = :seen_ns
      AND iif(lease_clock = :clock, lease_expires_ns <= :now_ns OR lease_expires_ns > :granted_now_ns,
          :granted_now_ns IS NOT NULL)
  ))
RETURNING lease_clock, lease_expires_ns
