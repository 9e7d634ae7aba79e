-- Whole rows of one agent that are due, at most so many.
SELECT
    id, agent, owner, initiator, team, mode, state, reason, epoch, sequence, lease_id, holder, lease_clock,
    lease_expires_ns, next_segment, cancel_requested, recovery, recovery_explicit, requeues, priority, due_at_ms,
    fence_call, fence_tool, fence_effect, fence_key, fence_epoch, fence_lease_id, fence_attempt, fence_repeat,
    fence_verifiable, fence_stamped_at_ms, fence_in_flight_until_ms, turn, wait_deadline_ms, has_request,
    second_approver, rounds, input_tokens, output_tokens, cached_tokens, reasoning_tokens, cost_nano_usd, duplicates, contradictions, attribution, chain_salt, chain_head, created_at_ms,
    started_at_ms, finished_at_ms, since_ms
FROM runs
WHERE state = 'queued'
  AND agent = :agent
  AND due_at_ms <= :now_ms
  AND id NOT IN (SELECT value FROM json_each(:except))
ORDER BY priority DESC, due_at_ms, id
LIMIT :limit
