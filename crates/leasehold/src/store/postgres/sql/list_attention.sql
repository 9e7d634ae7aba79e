SELECT id, agent, owner, team, state, reason, epoch, holder, fence_tool, cancel_requested, duplicates, contradictions, attribution, created_at_ms, since_ms
FROM runs
WHERE state IN ('waiting_for_approval', 'waiting_for_input', 'dead')
  AND (:states::text[] IS NULL OR state = ANY (:states))
  AND (:agent::text IS NULL OR agent = :agent)
  AND (:owner::text IS NULL OR owner = :owner)
  AND (:reason::text IS NULL OR reason = :reason)
  AND (:since_ms::bigint IS NULL OR created_at_ms >= :since_ms)
  AND (:see_owner::text IS NULL OR owner = :see_owner OR initiator = :see_initiator OR team = ANY (:see_teams))
  AND (NOT :flagged_only OR duplicates > 0 OR contradictions > 0)
  AND id < :before
ORDER BY id DESC
LIMIT :limit
